"""Rejects ambiguous requests, so that the authorised call is the executed one.

Several programs read a request: the check of its signature, that of the policies (`gate`), the
lab's own services, moto. Each finds the key, the service and the call by itself; if two programs
read different values, the authorised call is not the executed one. A request that gives a value
twice is refused; of a value with several forms, one form is passed on.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from lab.access import auth

_FORM = "application/x-www-form-urlencoded"


class TwoMeaningsError(Exception):
    """Why a request could be read in two ways."""


def of(environ: dict[str, Any], body: bytes, longest: int) -> bytes:
    """The body of a checked request, not compressed; the headers say what is left of it.

    Raises TwoMeaningsError for a request that names its call or a parameter more than once, and for
    a compressed body that is damaged.
    """
    service, environ["HTTP_AUTHORIZATION"] = auth.as_checked(environ)
    if service.lower() == "s3":  # its calls are named by method and path, and bodies are data
        return body
    body = _unpacked(environ, body, longest)
    _check(environ, body)
    return body


def _unpacked(environ: dict[str, Any], body: bytes, longest: int) -> bytes:
    if str(environ.get("HTTP_CONTENT_ENCODING", "")).lower() != "gzip":
        return body
    unpacking = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacking.decompress(body, longest)
    except zlib.error:
        raise TwoMeaningsError("the body is not compressed as its header says") from None
    if not unpacking.eof or unpacking.unused_data:
        raise TwoMeaningsError("the compressed body is truncated or too long, or has data after it")
    del environ["HTTP_CONTENT_ENCODING"]
    return unpacked


def is_form(environ: Mapping[str, Any]) -> bool:
    """Whether the body has the parameters of a call, as AWS's query protocol sends them."""
    kind = str(environ.get("CONTENT_TYPE", "")).partition(";")[0]
    return kind.strip().lower() == _FORM


def _check(environ: Mapping[str, Any], body: bytes) -> None:
    if str(environ.get("CONTENT_TYPE", "")).strip().lower().startswith("multipart/"):
        raise TwoMeaningsError("AWS takes no parameters as multipart")
    pairs = parse_qsl(str(environ.get("QUERY_STRING", "")), keep_blank_values=True)
    if is_form(environ):
        pairs += parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
    names = [name for name, _ in pairs]
    # Where the path names the call, a list is a parameter several times (tagKeys=a&tagKeys=b).
    if "Action" in names and len(set(names)) < len(names):
        raise TwoMeaningsError("a parameter is given more than once")
    ways = [
        "Action" in names,
        "HTTP_X_AMZ_TARGET" in environ,
        str(environ.get("PATH_INFO", "")).startswith("/service/"),
        "HTTP_ACTION" in environ,
    ]
    if sum(ways) > 1 or ways[-1]:
        raise TwoMeaningsError("the call is named in more than one place")
