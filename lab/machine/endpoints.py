"""AWS's endpoints, as guests see them: `ssm.us-east-1.amazonaws.com` and the like lead to the lab.

The guests' resolver answers these names with the lab's address, the lab's certificate holds them,
and what arrives there over HTTPS or HTTP goes on to the lab's API as it is: a client in a guest
needs no setting, as on EC2. It needs credentials (those of the instance's role, from IMDS), because
the API takes requests with a session token only. The lab's own calls (`/_lab/`) are not for guests.

https://docs.aws.amazon.com/general/latest/gr/rande.html
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlsplit

import botocore.session

_REGION = r"[a-z]{2}(-[a-z]+)+-[0-9]"
# A service in a region, over IPv4 or dual stack, or one of the services without a region.
_SERVICE = re.compile(
    rf"[a-z0-9-]+\.{_REGION}\.(amazonaws\.com|api\.aws)|(iam|sts|s3)\.amazonaws\.com"
)
# A bucket as a host name. Buckets that the lab does not have are AWS's: anyone may download there.
_BUCKET = re.compile(rf"(?P<bucket>[a-z0-9.-]+)\.s3(\.{_REGION})?\.amazonaws\.com")
_CHUNK = 1 << 16
_TIMEOUT = 90.0
_NOT_PASSED = ("connection", "keep-alive", "proxy-connection", "transfer-encoding")
_NOT_FOR_GUESTS = ("/_lab/", "/moto-api")

HasBucket = Callable[[str], bool]


def is_lab_endpoint(name: str, has_bucket: HasBucket) -> bool:
    """Return True if a host name is one that the lab answers for AWS."""
    if _SERVICE.fullmatch(name):
        return True
    bucket = _BUCKET.fullmatch(name)
    return bool(bucket and has_bucket(bucket["bucket"]))


@functools.cache
def certified() -> list[str]:
    """The names of these endpoints in the lab's certificate."""
    regions = botocore.session.get_session().get_available_regions("ec2")
    return [
        *("iam.amazonaws.com", "sts.amazonaws.com", "*.s3.amazonaws.com"),
        *(
            name
            for region in sorted(regions)
            for name in (
                f"*.{region}.amazonaws.com",
                f"*.s3.{region}.amazonaws.com",
                f"*.{region}.api.aws",
            )
        ),
    ]


def is_signed(handler: BaseHTTPRequestHandler) -> bool:
    """Return True if a request has a signature, right or wrong: a vendor's download has none."""
    return "Authorization" in handler.headers or "X-Amz-Signature=" in handler.path


def forward(handler: BaseHTTPRequestHandler, port: int) -> None:
    """Pass a guest's request on to the API at `port` of this machine, and its answer back.

    The body is passed on as it comes: the API decides whether it wants to read it.
    """
    length = ",".join(handler.headers.get_all("Content-Length") or ["0"])
    path = unquote(urlsplit(handler.path).path)
    if path.startswith(_NOT_FOR_GUESTS):
        _refuse(handler, 403, "this call is not for guests")
        return
    if not re.fullmatch(r"[0-9]{1,10}", length) or "Transfer-Encoding" in handler.headers:
        _refuse(handler, 411, "the body needs a Content-Length: chunks are not there in the lab")
        return
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
    try:
        connection.putrequest(
            handler.command, handler.path, skip_host=True, skip_accept_encoding=True
        )
        for name, value in handler.headers.items():
            if name.lower() not in _NOT_PASSED:
                connection.putheader(name, value)
        connection.endheaders()
        # A refusal may come before the end of the body.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            left = int(length)
            while left and (part := handler.rfile.read(min(left, _CHUNK))):
                left -= len(part)
                connection.send(part)
        if left:
            handler.close_connection = True
        answer = connection.getresponse()
        _pass_back(handler, answer)
    except (OSError, ValueError, http.client.HTTPException) as error:
        handler.close_connection = True
        with contextlib.suppress(OSError):
            _refuse(handler, 503, f"the lab's API does not answer: {error}")
    finally:
        connection.close()


def _pass_back(handler: BaseHTTPRequestHandler, answer: http.client.HTTPResponse) -> None:
    content = answer.read()
    handler.send_response(answer.status, answer.reason)
    names = {name.lower() for name, _ in answer.getheaders()}
    for name, value in answer.getheaders():
        if name.lower() not in (*_NOT_PASSED, "server", "date"):
            handler.send_header(name, value)
    if "content-length" not in names:
        handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def _refuse(handler: BaseHTTPRequestHandler, status: int, text: str) -> None:
    content = f"AMI Kiln lab: {text}\n".encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "text/plain")
    handler.send_header("Content-Length", str(len(content)))
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(content)
    handler.close_connection = True
