"""Refuses calls that moto does not implement, or fails in, as the service would refuse them.

A call that moto 5.2.5 lacks ends in an exception, which its server turns into an HTML page with
status 500: clients retry that for a minute and then report a syntax error. Answers are 4xx here.
"""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

import botocore.session

from lab.api import refusals, wsgi

log = logging.getLogger("lab.unsupported")

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
# moto's skip types that they lack without a word, or say of what nobody did that it succeeded.
_REFUSED_SERVICES = frozenset({"cloudformation", "codebuild", "ec2-instance-connect"})
# moto's keep what they are given, and nothing ever comes of it.
_REFUSED_CALLS = {
    "monitoring": {"PutMetricAlarm", "PutCompositeAlarm"},
    "logs": {"PutMetricFilter", "StartQuery", "TestMetricFilter"},
    "ssm": {"GetCommandInvocation", "ListCommands"},
}


def refusing(moto: Application) -> Application:
    """`moto`, with its exceptions and HTML error pages made errors of the service asked."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = wsgi.peeked(environ)
        begun: list[Any] = []
        _, service = wsgi.scope(environ)
        if service in _REFUSED_SERVICES or (
            service in _REFUSED_CALLS and _call(environ, body) in _REFUSED_CALLS[service]
        ):
            return _refuse(environ, body, "", start_response)
        try:
            content = moto(environ, lambda *answer: begun.append(answer))
        except Exception as error:
            why = "" if isinstance(error, NotImplementedError) else _where(error)
            return _refuse(environ, body, why, start_response)
        ((status, headers, *more),) = begun
        kind = dict(headers).get("Content-Type", "")
        if status[0] in "45" and kind.startswith("text/html"):
            # A page, or an answer of moto without a type, such as S3's to HeadObject.
            text = b"".join(content)
            if text.lstrip()[:5].lower() in (b"<!doc", b"<html"):
                return _refuse(environ, body, status, start_response)
            content = [text]
        start_response(status, headers, *more)
        return content

    return application


def _where(error: Exception) -> str:
    """An exception in one line, with the place that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"


def _refuse(
    environ: dict[str, Any], body: bytes, why: str, start_response: Callable[..., Any]
) -> list[bytes]:
    _, service = wsgi.scope(environ)
    call = _call(environ, body)
    log.warning("%s %s is not supported%s", service or "?", call, f": {why}" if why else "")
    exists = service != "ec2" or call in _ec2_calls()
    answer = refusals.unsupported(call, exists, environ)
    start_response(answer.status, list(answer.headers))
    return [answer.body]


def _call(environ: dict[str, Any], body: bytes) -> str:
    """The call's name, by the protocol of its service."""
    target = str(environ.get("HTTP_X_AMZ_TARGET", ""))
    if target:
        return target.rpartition(".")[2]
    for text in (body.decode("latin-1"), str(environ.get("QUERY_STRING", ""))):
        action = parse_qs(text).get("Action")
        if action:
            return action[0]
    return f"{environ['REQUEST_METHOD']} {environ.get('PATH_INFO', '')}"


@functools.cache
def _ec2_calls() -> frozenset[str]:
    """The names of EC2's calls."""
    return frozenset(botocore.session.get_session().get_service_model("ec2").operation_names)
