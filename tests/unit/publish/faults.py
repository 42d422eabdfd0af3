"""Faults between the tasks and AWS: a process that dies at a call, a region that is down,
credentials that expire, an action that is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError, EndpointConnectionError

# Answers a call of boto3: region, operation, parameters, and the call itself.
Answer = Callable[[str, str, dict[str, Any], Callable[[], Any]], Any]
# Raises what a call of boto3 ends with, if it fails: region, operation.
Fault = Callable[[str, str], None]


def at_each_call(patch: pytest.MonkeyPatch, act: Answer) -> None:
    """Let `act` answer each call of boto3's clients."""
    real = BaseClient._make_api_call  # type: ignore[attr-defined]

    def answer(self: Any, operation: str, parameters: dict[str, Any]) -> Any:
        region = self.meta.region_name
        return act(region, operation, parameters, lambda: real(self, operation, parameters))

    patch.setattr(BaseClient, "_make_api_call", answer)


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


@contextmanager
def faulty(fault: Fault) -> Iterator[None]:
    """While inside, `fault` strikes each call before it is sent."""

    def act(region: str, operation: str, given: dict[str, Any], call: Callable[[], Any]) -> Any:
        fault(region, operation)
        return call()

    with pytest.MonkeyPatch.context() as patch:
        at_each_call(patch, act)
        yield


def answers(operation: str, code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "ordered by a test"}}, operation)


def killed(region: str, operation: str) -> None:
    """The process dies before it sends the request."""
    raise Killed


def token_expired(region: str, operation: str) -> None:
    """AWS accepts the credentials no more."""
    raise answers(operation, "ExpiredTokenException")


def region_down(down: str) -> Fault:
    """Nothing answers in a region."""

    def refuse(region: str, operation: str) -> None:
        if region == down:
            raise EndpointConnectionError(endpoint_url=f"https://ec2.{region}")

    return refuse


_WRITES = ("Put", "Delete", "Create", "Enable", "Disable", "Modify", "Copy", "Deregister")


def after_writes(number: int, fault: Fault) -> Fault:
    """A fault that strikes when so many requests have changed something."""
    written: list[str] = []

    def later(region: str, operation: str) -> None:
        if len(written) >= number:
            fault(region, operation)
        if operation.startswith(_WRITES):
            written.append(operation)

    return later


def refuses(action: str, code: str, there: str | None = None) -> Fault:
    """AWS answers an action with an error, in one region or everywhere."""

    def refuse(region: str, operation: str) -> None:
        if operation == action and there in (None, region):
            raise answers(operation, code)

    return refuse
