"""What is in front of moto: who may call, injected failures, the lab's own calls."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from lab.api import refusals, session_token, unsupported, web_pages, wsgi
from lab.api.faults import ERRORS, Fault, Faults
from lab.moto.ec2 import known_images

log = logging.getLogger("lab.api")

HEALTH = "/_lab/health"
_OWNERS = ("/_lab/", "/moto-api")
_CHANGES_IMAGES = re.compile(r"^(Create|Delete)Tags$|Image|SnapshotAttribute")

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Admin = Callable[[str, dict[str, Any]], Any]


def guard(
    inner: Application,
    token: str,
    is_role_token: Callable[[str], bool],
    *,
    addresses: Sequence[str],
) -> Application:
    """Pass requests with a session token of the lab on to `inner`; reject all others.

    `token` is the lab's own, `addresses` are the lab's besides loopback. A role's token makes every
    call but the lab's own and moto's. `/_lab/health` answers everybody, and says nothing.
    """

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path, given = environ.get("PATH_INFO", ""), session_token.sent(environ)
        if page := web_pages.sent_by_page(environ, addresses):
            return _refuse(refusals.plain("403 Forbidden", page), environ, start_response, page)
        if path == HEALTH:
            return _send(refusals.plain("200 OK", "up"), start_response)
        known = session_token.is_same(token, given)
        if not known and not path.startswith(_OWNERS):
            known = is_role_token(given)
        if not known:
            answer = refusals.unknown_token(environ)
            return _refuse(answer, environ, start_response, "no session token of this lab")
        return inner(environ, _without_cors(start_response))

    return application


def _without_cors(start_response: Callable[..., Any]) -> Callable[..., Any]:
    """No header of an answer may invite web pages; moto adds them in several places."""

    def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
        kept = [pair for pair in headers if not pair[0].lower().startswith("access-control-")]
        return start_response(status, kept, *more)

    return start


def _refuse(
    answer: refusals.Answer,
    environ: dict[str, Any],
    start_response: Callable[..., Any],
    reason: str,
) -> list[bytes]:
    log.info("refused %s %r: %s", environ["REQUEST_METHOD"], environ.get("PATH_INFO"), reason)
    return _send(answer, start_response)


def _send(answer: refusals.Answer, start_response: Callable[..., Any]) -> list[bytes]:
    start_response(answer.status, list(answer.headers))
    return [answer.body]


def wrap(moto: Application, faults: Faults, admin: Admin) -> Application:
    """Wrap moto's WSGI application. `admin(path, body)` answers the requests below `/_lab/`."""
    moto = unsupported.refusing(moto)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        body = wsgi.peeked(environ)
        if path.startswith("/_lab/"):
            return _admin(admin, path[len("/_lab/") :], body, start_response)
        action, parameters = _request(body)
        if "HTTP_X_AMZ_TARGET" in environ:
            # moto reads a body of JSON as a form too unless there is a query: a line of a log with
            # `&Action=DeleteLogGroup&logGroupName=g&` would be that call.
            environ["QUERY_STRING"] = "json"
            action = ""
        if not action:
            return moto(environ, start_response)
        fault = faults.take(action, parameters)
        if fault:
            return _injected(fault, parameters, start_response)
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][wsgi.scope(environ)[0]]
        answer = moto(environ, start_response)
        if _CHANGES_IMAGES.search(action) and not action.startswith("Describe"):
            known_images.remember(backend)
        return answer

    return application


def _request(body: bytes) -> tuple[str, dict[str, str]]:
    if b"Action=" not in body:
        return "", {}
    parameters = dict(parse_qsl(body.decode("utf-8", "replace")))
    return parameters.get("Action", ""), parameters


def _injected(
    fault: Fault, parameters: dict[str, str], start_response: Callable[..., Any]
) -> list[bytes]:
    status, message = ERRORS.get(fault.code, (400, ""))
    text = (fault.message or message).replace("{InstanceType}", parameters.get("InstanceType", ""))
    log.info("injected failure: %s %s", fault.action, fault.code)
    answer = refusals.of_ec2(f"{status} {fault.code}", fault.code, text)
    return _send(answer, start_response)


def _admin(admin: Admin, path: str, body: bytes, start_response: Callable[..., Any]) -> list[bytes]:
    try:
        answer = admin(path, json.loads(body or b"{}"))
        status = "200 OK"
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        answer, status = {"error": str(error.args[0] if error.args else error)}, "400 Bad Request"
    data = json.dumps(answer).encode()
    start_response(
        status, [("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
    )
    return [data]
