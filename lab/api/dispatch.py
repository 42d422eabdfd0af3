"""Callers of the lab's API, and who answers them: the lab, an injected failure, a service.

A call that moto 5.2.5 lacks ends in an exception, which its server turns into an HTML page with
status 500: clients retry that for a minute and then report a syntax error. Answers are 4xx here.
"""

from __future__ import annotations

import functools
import json
import logging
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import botocore.session

from lab.api import answers, session_token, web_pages
from lab.api.answers import Answer
from lab.api.call import Call
from lab.api.faults import ERRORS, Fault, Faults

log = logging.getLogger("lab.api")

HEALTH = "/_lab/health"
_OWNERS = ("/_lab/", "/moto-api")
# moto's skip types that they lack without a word, or say of what nobody did that it succeeded.
_REFUSED_SERVICES = frozenset({"cloudformation", "codebuild", "ec2-instance-connect"})
# moto's keep what they are given, and nothing ever comes of it.
_REFUSED_CALLS = {
    "monitoring": {"PutMetricAlarm", "PutCompositeAlarm"},
    "logs": {"PutMetricFilter", "StartQuery", "TestMetricFilter"},
    "ssm": {"GetCommandInvocation", "ListCommands"},
}

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Admin = Callable[[str, dict[str, Any]], Any]


@dataclass(frozen=True)
class Callers:
    """Permitted callers: `token` is the lab's own, `addresses` are the lab's besides loopback.

    A role's token makes every call but the lab's own and moto's.
    """

    token: str
    is_role_token: Callable[[str], bool]
    addresses: Sequence[str]

    def refusal(self, call: Call) -> Answer | None:
        """The answer to a caller who may not call; None for others."""
        if why := web_pages.sent_by_page(call.environ, self.addresses):
            answer = answers.plain("403 Forbidden", why)
        elif self._may_call(call):
            return None
        else:
            why, answer = "no session token of this lab", answers.unknown_token(call.family)
        log.info("refused %s %r: %s", call.environ["REQUEST_METHOD"], call.path, why)
        return answer

    def _may_call(self, call: Call) -> bool:
        known = call.path == HEALTH or session_token.is_same(self.token, call.token)
        return known or (not call.path.startswith(_OWNERS) and self.is_role_token(call.token))


@dataclass(frozen=True)
class Api:
    """The WSGI application of the lab's API.

    `admin(path, body)` answers the calls below `/_lab/`. Without `callers` everybody may call.
    `/_lab/health` says nothing but that.
    """

    moto: Application
    faults: Faults
    admin: Admin
    callers: Callers | None = None

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        answer = self.answer(Call(environ))
        # None may invite web pages; moto's do in several places.
        kept = [
            each for each in answer.headers if not each[0].lower().startswith("access-control-")
        ]
        start_response(answer.status, kept)
        return [answer.body]

    def answer(self, call: Call) -> Answer:
        """The answer to a request."""
        if self.callers and (refusal := self.callers.refusal(call)):
            return refusal
        if call.path == HEALTH:
            return answers.plain("200 OK", "up")
        if call.path.startswith("/_lab/"):
            return self._admin(call)
        if call.form and (fault := self.faults.take(call.action, dict(call.form))):
            return _injected(fault, call)
        return self._service_answer(call)

    def _service_answer(self, call: Call) -> Answer:
        if call.service in _REFUSED_SERVICES or (
            call.service in _REFUSED_CALLS and call.action in _REFUSED_CALLS[call.service]
        ):
            return _unsupported(call)
        try:
            answer = self._moto_answer(call)
        except Exception as error:
            return _unsupported(call, error)
        # Some of moto's have no type, such as S3's to HeadObject.
        is_page = dict(answer.headers).get("Content-Type", "").startswith("text/html")
        is_page = is_page and answer.body.lstrip()[:5].lower() in (b"<!doc", b"<html")
        return _unsupported(call) if is_page and answer.status[0] in "45" else answer

    def _moto_answer(self, call: Call) -> Answer:
        if call.target:
            # moto reads a body of JSON as a form too unless there is a query: a line of a log with
            # `&Action=DeleteLogGroup&logGroupName=g&` would be that call.
            call.environ["QUERY_STRING"] = "json"
        begun: list[Any] = []
        body = b"".join(self.moto(call.environ, lambda *start: begun.append(start)))
        status, headers, *_ = begun[0]
        return Answer(status, tuple(headers), body)

    def _admin(self, call: Call) -> Answer:
        try:
            said = self.admin(call.path.removeprefix("/_lab/"), json.loads(call.body or b"{}"))
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            why = {"error": str(error.args[0] if error.args else error)}
            return answers.json_answer(why, "400 Bad Request")
        return answers.json_answer(said)


def _injected(fault: Fault, call: Call) -> Answer:
    status, message = ERRORS.get(fault.code, (400, ""))
    text = (fault.message or message).replace("{InstanceType}", call.form.get("InstanceType", ""))
    log.info("injected failure: %s %s", fault.action, fault.code)
    return answers.error(call.family, f"{status} {fault.code}", fault.code, text)


def _unsupported(call: Call, error: Exception | None = None) -> Answer:
    why = ""
    if error and not isinstance(error, NotImplementedError):
        last = traceback.extract_tb(error.__traceback__)[-1]
        why = f": {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
    log.warning("%s %s is not supported%s", call.service or "?", call.action, why)
    exists = call.service != "ec2" or call.action in _ec2_calls()
    return answers.unsupported(call.family, call.action, exists=exists)


@functools.cache
def _ec2_calls() -> frozenset[str]:
    """The names of EC2's calls."""
    return frozenset(botocore.session.get_session().get_service_model("ec2").operation_names)
