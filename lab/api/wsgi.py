"""What the layers of the lab's API read of a request: its region, its service, its body."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

_SCOPE = re.compile(r"Credential=[^/]+/[0-9]+/([^/]+)/([^/]+)/")


def scope(environ: Mapping[str, Any]) -> tuple[str, str]:
    """Return region and service of the Authorization header; the service is "" without one."""
    found = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
    return (found[1], found[2]) if found else ("us-east-1", "")


def peeked(environ: dict[str, Any]) -> bytes:
    """The whole body of a WSGI request, which can be read again from its beginning."""
    stream = environ["wsgi.input"]
    if environ.get("wsgi.input_terminated"):  # sent in chunks, without a length
        body = bytes(stream.read())
    else:
        body = bytes(stream.read(int(environ.get("CONTENT_LENGTH") or 0)))
    environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(body), str(len(body))
    return body
