"""Faults between the tasks and AWS: a process that dies at a call, throttling, a region that is
down, credentials that expire. They strike below boto3's own retries."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.client import BaseClient
from botocore.exceptions import EndpointConnectionError
from botocore.httpsession import URLLib3Session


@dataclass(frozen=True)
class Call:
    """A request: `ec2`, `us-east-1`, `DescribeImages`, and its number from 0."""

    service: str
    region: str
    action: str
    number: int


# What AWS answers instead: HTTP status and error code; None: the request is passed on.
Fault = Callable[[Call], tuple[int, str] | None]


def at_each_call(
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[str, str, dict[str, Any], Callable[[], Any]], Any],
) -> None:
    """Let `act` answer each call of boto3's clients."""
    real = BaseClient._make_api_call  # type: ignore[attr-defined]

    def answer(self: Any, operation: str, parameters: dict[str, Any]) -> Any:
        region = self.meta.region_name
        return act(region, operation, parameters, lambda: real(self, operation, parameters))

    monkeypatch.setattr(BaseClient, "_make_api_call", answer)


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


@contextmanager
def faulty(fault: Fault) -> Iterator[list[Call]]:
    """While inside, `fault` decides about each request; the requests so far."""
    real = URLLib3Session.send
    numbers = count()
    seen: list[Call] = []

    def send(self: Any, request: Any) -> Any:
        scope = re.search(r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/", _text(request.headers))
        assert scope, request.headers
        call = Call(scope.group(2), scope.group(1), _action(request), next(numbers))
        seen.append(call)
        answer = fault(call)
        return real(self, request) if answer is None else _response(call, request, *answer)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(URLLib3Session, "send", send)
        # Retries wait for seconds.
        patched.setattr(time, "sleep", lambda seconds: None)
        yield seen


def killed() -> Fault:
    """The process dies before it sends the request."""

    def die(call: Call) -> None:
        raise Killed

    return die


def region_down(region: str) -> Fault:
    """Nothing answers in a region."""

    def refuse(call: Call) -> None:
        if call.region == region:
            raise EndpointConnectionError(endpoint_url=f"https://{call.service}.{region}")

    return refuse


def token_expired() -> Fault:
    """AWS accepts the credentials no more."""

    def expired(call: Call) -> tuple[int, str]:
        code = {"ec2": "RequestExpired", "sts": "ExpiredToken"}
        return 400, code.get(call.service, "ExpiredTokenException")

    return expired


_WRITES = ("Put", "Delete", "Create", "Enable", "Disable", "Modify", "Copy", "Deregister")


def after_writes(number: int, fault: Fault) -> Fault:
    """A fault that strikes when so many requests have changed something."""
    written: list[Call] = []

    def later(call: Call) -> tuple[int, str] | None:
        if len(written) >= number:
            return fault(call)
        if call.action.startswith(_WRITES):
            written.append(call)
        return None

    return later


def throttled() -> Fault:
    """Two of three requests are too many."""

    def too_many(call: Call) -> tuple[int, str] | None:
        code = {"ec2": "RequestLimitExceeded", "ssm": "ThrottlingException"}
        return (400, code.get(call.service, "Throttling")) if call.number % 3 else None

    return too_many


def refuses(action: str, code: str, region: str | None = None) -> Fault:
    """AWS answers an action with an error, in one region or everywhere."""

    def refuse(call: Call) -> tuple[int, str] | None:
        return (400, code) if call.action == action and region in (None, call.region) else None

    return refuse


def _text(headers: Any) -> str:
    value = headers["Authorization"]
    return value.decode() if isinstance(value, bytes) else str(value)


def _action(request: Any) -> str:
    target = request.headers.get("X-Amz-Target", b"")
    target = target.decode() if isinstance(target, bytes) else str(target)
    if target:
        return target.rpartition(".")[2]
    if "/s3/aws4_request" in _text(request.headers):
        listing = "list-type=" in request.url
        return "ListObjectsV2" if listing else f"{str(request.method).title()}Object"
    body = request.body.decode() if isinstance(request.body, bytes) else str(request.body)
    found = re.search(r"(?:^|&)Action=(\w+)", body)
    return found.group(1) if found else ""


class _Raw:
    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self._body


def _response(call: Call, request: Any, status: int, code: str) -> AWSResponse:
    if call.service in ("ssm", "logs"):
        body = json.dumps({"__type": code, "message": "ordered by a test"})
    else:
        error = f"<Error><Code>{code}</Code><Message>ordered by a test</Message></Error>"
        body = (
            f"<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>"
            if call.service == "ec2"
            else error
            if call.service == "s3"
            else f"<ErrorResponse>{error}</ErrorResponse>"
        )
    return AWSResponse(request.url, status, {}, _Raw(body.encode()))  # type: ignore[arg-type]
