"""Who may call the lab's API: requests signed with a key of the lab, and nobody else.

A web page can make a browser send requests to 127.0.0.1, and so can any user of this machine. A
page's request (an `Origin`, or a host name that leads here only because a page's owner chose that)
is refused first; everything else must carry AWS's Signature Version 4, as a header or in the query
(a presigned URL). botocore computes the signature; this module rebuilds the request as it was
signed.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import quote, unquote, unquote_to_bytes

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.utils import normalize_url_path

from lab.access.keys import Key, Lookup

# https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html: a request is
# valid for 15 minutes; a presigned URL for at most seven days.
SKEW = 15 * 60
_LONGEST = 7 * 24 * 3600
_ALGORITHM = "AWS4-HMAC-SHA256"
_TIMESTAMP = "%Y%m%dT%H%M%SZ"
_UNSIGNED = "UNSIGNED-PAYLOAD"
_CHUNKED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
_CHUNKED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
_UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_NOTHING = hashlib.sha256(b"").hexdigest()
_UNRESERVED = "-_.~"
# Services whose paths are encoded once in the signed text; all others encode them twice.
_S3 = ("s3", "s3-outposts", "s3-object-lambda", "s3express")
# The names of AWS's endpoints: nobody but AWS decides where they lead.
_AWS_HOST = re.compile(r"([a-z0-9-]+\.)+(amazonaws\.com(\.cn)?|api\.aws)")


# unsigned: no signature; unknown: a key that the lab does not have; wrong: not this signature;
# late: signed too long ago, or in the future; unsigned_part: something that must be signed is not;
# expired: a role's key, too old.
Kind = Literal["unsigned", "unknown", "wrong", "late", "unsigned_part", "expired"]


class RefusedError(Exception):
    """Why a request is refused. A service makes its own error from `kind`.

    `service` is the one that the request names, "" for none.
    """

    def __init__(self, kind: Kind, message: str, service: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.service = kind, message, service


@dataclass(frozen=True)
class _Claim:
    """What a request says about its signature."""

    key_id: str
    scope: tuple[str, str, str]  # date, region, service
    signed_headers: tuple[str, ...]
    signature: str
    timestamp: str
    seconds: int  # how long it is valid
    presigned: bool

    @property
    def service(self) -> str:
        return self.scope[2]


def from_a_page(environ: Mapping[str, Any], own_addresses: Sequence[str]) -> str:
    """Why a request looks as if a web page had sent it; "" when it does not.

    `own_addresses` are the lab's addresses besides loopback.
    """
    if "HTTP_ORIGIN" in environ:
        return "requests of web pages (with an Origin) are refused"
    name = _host_name(environ.get("HTTP_HOST", ""))
    if not _leads_here(name, own_addresses):
        return f"{name or 'an empty name'} is not a name of this lab"
    return ""


def _host_name(host: str) -> str:
    """The name in a Host header, without the port and in lower case."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]*)(:[0-9]*)?", host.strip())
    return match.group(1).strip("[]").lower().rstrip(".") if match else ""


def _leads_here(name: str, own_addresses: Sequence[str]) -> bool:
    """Whether a name leads to the lab by itself, and not because of somebody's DNS entry."""
    if name in own_addresses or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return bool(_AWS_HOST.fullmatch(name))


def caller(
    environ: Mapping[str, Any],
    read: Callable[[], bytes],
    find: Lookup,
    *,
    now: Callable[[], float] = time.time,
) -> Key:
    """The key that a request is signed with. Raises RefusedError.

    `read` returns the whole body, as it was sent; it is not called for an unknown key, so that
    nobody fills the lab's memory.
    """
    claim = _claim(environ)
    key = find(claim.key_id)
    if key is None:
        raise RefusedError("unknown", "the lab does not know this access key", claim.service)
    try:
        _check_time(claim, now())
        _check_parts(claim, environ)
        _check_token(environ, key)
        if key.expires is not None and now() >= key.expires:
            raise RefusedError("expired", f"the key of {key.principal} has expired")
        body = read()
        payload = _payload_hash(claim, environ, body)
        signer, request = _as_signed(claim, environ, payload, key)
        expected = signer.signature(
            signer.string_to_sign(request, signer.canonical_request(request)), request
        )
        if not _same(expected, claim.signature):
            raise RefusedError("wrong", "the signature does not match the request")
        if payload in (_CHUNKED, _CHUNKED_TRAILER):
            _check_chunks(claim, signer, request, body)
    except RefusedError as refused:
        refused.service = claim.service
        raise
    return key


def as_checked(environ: Mapping[str, Any]) -> tuple[str, str]:
    """A checked request's service, and the Authorization header that says what was checked.

    The header that was sent may name a second key, region or service, and a presigned URL has none.
    """
    claim = _claim(environ)
    scope = "/".join((claim.key_id, *claim.scope, "aws4_request"))
    signed = ";".join(claim.signed_headers)
    return claim.service, (
        f"{_ALGORITHM} Credential={scope}, SignedHeaders={signed}, Signature={claim.signature}"
    )


def _claim(environ: Mapping[str, Any]) -> _Claim:
    header = environ.get("HTTP_AUTHORIZATION", "")
    query = dict(_query(environ))
    if header:
        algorithm, _, rest = header.partition(" ")
        fields = {
            name.strip(): value.strip()
            for name, _, value in (part.partition("=") for part in rest.split(","))
        }
        timestamp = environ.get("HTTP_X_AMZ_DATE") or _from_date(environ.get("HTTP_DATE", ""))
        seconds = SKEW
    elif "X-Amz-Signature" in query:
        algorithm = query.get("X-Amz-Algorithm", "")
        fields = {
            name: query.get(f"X-Amz-{name}", "")
            for name in ("Credential", "SignedHeaders", "Signature")
        }
        timestamp = query.get("X-Amz-Date", "")
        expires = query.get("X-Amz-Expires", str(SKEW))
        seconds = int(expires) if re.fullmatch(r"[0-9]{1,6}", expires) else _LONGEST + 1
    else:
        raise RefusedError("unsigned", "the request is not signed")
    credential = fields.get("Credential", "").split("/")
    service = credential[-2] if len(credential) >= 5 else ""
    if algorithm != _ALGORITHM or len(credential) < 5 or credential[-1] != "aws4_request":
        raise RefusedError("unsigned", f"the request is not signed with {_ALGORITHM}", service)
    date, region, service = credential[-4:-1]
    return _Claim(
        key_id="/".join(credential[:-4]),
        scope=(date, region, service),
        signed_headers=tuple(fields.get("SignedHeaders", "").lower().split(";")),
        signature=fields.get("Signature", ""),
        timestamp=timestamp,
        seconds=seconds,
        presigned=not header,
    )


def _same(text: str, other: str) -> bool:
    # compare_digest takes no text beyond ASCII, and a client may send any.
    return hmac.compare_digest(text.encode(), other.encode())


def _from_date(date: str) -> str:
    """A Date header as a timestamp of a signature; "" for none that can be read."""
    try:
        return parsedate_to_datetime(date).astimezone(timezone.utc).strftime(_TIMESTAMP)
    except (TypeError, ValueError, OverflowError):  # a year, a day or a zone out of range
        return ""


def _check_time(claim: _Claim, now: float) -> None:
    try:
        signed = datetime.strptime(claim.timestamp, _TIMESTAMP).replace(tzinfo=timezone.utc)
    except ValueError:
        raise RefusedError("wrong", "its date is not of the form 20260131T235959Z") from None
    if claim.seconds > _LONGEST:
        raise RefusedError("wrong", "X-Amz-Expires must be a number of seconds, at most seven days")
    age = now - signed.timestamp()
    if age > claim.seconds or age < -SKEW:
        raise RefusedError(
            "late",
            f"the request was signed at {claim.timestamp}, and here it is "
            f"{datetime.fromtimestamp(now, timezone.utc).strftime(_TIMESTAMP)}",
        )


def _check_parts(claim: _Claim, environ: Mapping[str, Any]) -> None:
    """Refuse a request of which something is unsigned that AWS wants signed."""
    if "host" not in claim.signed_headers:
        raise RefusedError("unsigned_part", "the signature does not cover the host")
    loose = [
        name
        for name in (
            variable.removeprefix("HTTP_").replace("_", "-").lower()
            for variable in environ
            if variable.startswith("HTTP_X_AMZ_")
        )
        if name not in {header.replace("_", "-") for header in claim.signed_headers}
    ]
    if loose:
        names = ", ".join(sorted(loose))
        raise RefusedError("unsigned_part", f"the signature does not cover {names}")


def _check_token(environ: Mapping[str, Any], key: Key) -> None:
    if key.token is None:
        return
    query = dict(_query(environ))
    token = environ.get("HTTP_X_AMZ_SECURITY_TOKEN") or query.get("X-Amz-Security-Token", "")
    if not _same(key.token, token):
        raise RefusedError("unknown", "the session token is not that of this access key")


def _payload_hash(claim: _Claim, environ: Mapping[str, Any], body: bytes) -> str:
    """What stands for the body in the signed text: the hash of the body that came, except where S3
    allows an unsigned one, or one that is signed in chunks."""
    header = environ.get("HTTP_X_AMZ_CONTENT_SHA256")
    if claim.service in _S3:
        if claim.presigned and header is None:
            return _UNSIGNED
        if header in (_UNSIGNED, _UNSIGNED_TRAILER, _CHUNKED, _CHUNKED_TRAILER):
            return str(header)
    return hashlib.sha256(body).hexdigest()


def _as_signed(
    claim: _Claim, environ: Mapping[str, Any], payload: str, key: Key
) -> tuple[SigV4Auth, AWSRequest]:
    """The request as the client had it when it signed it, and what signs it again."""
    once = claim.service in _S3
    signer = _Signer(Credentials(key.id, key.secret), claim.service, claim.scope[1])
    path = _raw_path(environ)
    query = "&".join(
        f"{quote(name, safe=_UNRESERVED)}={quote(value, safe=_UNRESERVED)}"
        for name, value in _query(environ)
        if name != "X-Amz-Signature"
    )
    request = AWSRequest(method=str(environ["REQUEST_METHOD"]), url=f"{path}?{query}")
    for name in claim.signed_headers:
        request.headers[name] = _header(environ, name)
    if once:  # S3 encodes a path once, and takes it as it is
        path = quote(unquote_to_bytes(path), safe="/~")
    else:
        path = quote(normalize_url_path(path), safe="/~")
    request.context.update(timestamp=claim.timestamp, path=path, payload=payload)
    return signer, request


class _Signer(SigV4Auth):
    """Signs exactly the headers that the client signed, with the payload that was checked."""

    def canonical_request(self, request: AWSRequest) -> str:
        return "\n".join(
            (
                str(request.method).upper(),
                str(request.context["path"]),
                self.canonical_query_string(request),
                self.canonical_headers(request.headers) + "\n",
                self.signed_headers(request.headers),
                str(request.context["payload"]),
            )
        )


def _raw_path(environ: Mapping[str, Any]) -> str:
    """The path as it was sent: WSGI's own has lost how it was encoded."""
    raw = str(environ.get("REQUEST_URI") or environ.get("RAW_URI") or "")
    if not raw:
        return quote(str(environ.get("PATH_INFO", "/")).encode("latin-1"), safe="/~")
    if not raw.startswith("/"):  # the whole URL, as a proxy gets it
        raw = "/" + raw.partition("://")[2].partition("/")[2]
    return raw.partition("?")[0]


def _query(environ: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The query's names and values, decoded."""
    raw = str(environ.get("QUERY_STRING", ""))
    pairs = (part.partition("=") for part in raw.split("&") if part)
    return [(unquote(name), unquote(value)) for name, _, value in pairs]


def _header(environ: Mapping[str, Any], name: str) -> str:
    variable = name.upper().replace("-", "_")
    if variable not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        variable = f"HTTP_{variable}"
    # WSGI decodes headers as Latin-1; what was signed are their bytes.
    return str(environ.get(variable, "")).encode("latin-1", "replace").decode("utf-8", "replace")


_CHUNK = re.compile(rb"([0-9a-fA-F]{1,16});chunk-signature=([0-9a-f]{64})\r\n")


def _check_chunks(claim: _Claim, signer: SigV4Auth, request: AWSRequest, body: bytes) -> None:
    """Compare the chain of signatures in a body that was signed chunk by chunk.

    https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html and, for the trailer,
    sigv4-streaming-trailers.html
    """
    start = f"{claim.timestamp}\n{signer.credential_scope(request)}"
    before, place = claim.signature, 0
    while True:
        head = _CHUNK.match(body, place)
        if head is None:
            raise RefusedError("wrong", "the body is not made of signed chunks")
        size = int(head.group(1), 16)
        data = body[head.end() : head.end() + size]
        text = (
            f"{_ALGORITHM}-PAYLOAD\n{start}\n{before}\n{_NOTHING}\n"
            f"{hashlib.sha256(data).hexdigest()}"
        )
        before = _compare(signer, request, text, head.group(2).decode())
        place = head.end() + size
        if size == 0:
            break
        if len(data) != size or body[place : place + 2] != b"\r\n":
            raise RefusedError("wrong", "a chunk of the body is cut off")
        place += 2
    trailer = re.fullmatch(
        rb"(.*?)x-amz-trailer-signature:([0-9a-f]{64})\r\n(?:\r\n)?", body[place:], re.DOTALL
    )
    if trailer:
        headers = trailer.group(1).replace(b"\r\n", b"\n")
        text = f"{_ALGORITHM}-TRAILER\n{start}\n{before}\n{hashlib.sha256(headers).hexdigest()}"
        _compare(signer, request, text, trailer.group(2).decode())
    elif request.context["payload"] == _CHUNKED_TRAILER or body[place:] not in (b"\r\n", b""):
        raise RefusedError("wrong", "the body's last part is not signed")


def _compare(signer: SigV4Auth, request: AWSRequest, text: str, signature: str) -> str:
    expected = str(signer.signature(text, request))
    if not _same(expected, signature):
        raise RefusedError("wrong", "the signature of a chunk does not match")
    return signature
