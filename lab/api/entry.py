"""What is in front of moto: who may call, injected failures, the lab's own calls."""

from __future__ import annotations

import functools
import io
import json
import logging
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from lab.access import auth, bodies, one_meaning, refusals
from lab.access.keys import Lookup
from lab.api import unsupported
from lab.ec2 import known_images
from lab.faults import ERRORS, Fault, Faults

log = logging.getLogger("lab.api")

HEALTH = "/_lab/health"
_OWNERS = ("/_lab/", "/moto-api")
# What the guard keeps in memory of one request. S3 takes more in one PUT; nothing here sends it.
_LONGEST_BODY = 1 << 30
_NO_LENGTH = refusals.plain(
    "400 Bad Request", f"the body's length is not a number up to {_LONGEST_BODY}"
)
_BROKEN_BODY = "the body is not in the form that its headers say"
_NOT_YOURS = refusals.plain("403 Forbidden", "this call takes the lab's own key")
_CHANGES_IMAGES = re.compile(r"^(Create|Delete)Tags$|Image")

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Admin = Callable[[str, dict[str, Any]], Any]


def guard(
    inner: Application,
    find: Lookup,
    *,
    owner: str,
    addresses: Sequence[str],
) -> Application:
    """Let signed requests through to `inner`, and refuse all others as the service would.

    `find` knows the keys, `addresses` are the lab's besides loopback. Only the key with the id
    `owner` may make the lab's own calls and moto's; no policy is asked about AWS's. `/_lab/health`
    answers everybody, and says nothing.
    """

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        page = auth.from_a_page(environ, addresses)
        if page or not _has_length(environ):
            answer = refusals.plain("403 Forbidden", page) if page else _NO_LENGTH
            return _refuse(answer, environ, start_response, page or "a wrong Content-Length")
        if environ.get("PATH_INFO") == HEALTH:
            return _send(refusals.plain("200 OK", "up"), start_response)
        read = _reader(environ)
        try:
            key = auth.caller(environ, read, find)
            body = one_meaning.of(environ, read(), _LONGEST_BODY)
        except auth.RefusedError as refused:
            answer = refusals.answer(refused, environ, b"" if _large(environ) else read())
            return _refuse(answer, environ, start_response, refused.message)
        except (_BrokenBodyError, one_meaning.TwoMeaningsError) as error:
            answer = refusals.plain("400 Bad Request", f"AMI Kiln lab: {error}")
            return _refuse(answer, environ, start_response, str(error))
        if key.id != owner and environ.get("PATH_INFO", "").startswith(_OWNERS):
            return _refuse(_NOT_YOURS, environ, start_response, f"asked for by {key.principal}")
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        return inner(environ, _without_cors(start_response))

    return application


def _has_length(environ: dict[str, Any]) -> bool:
    """Whether the length that a request gives its body, if it gives one, can be taken."""
    length = environ.get("CONTENT_LENGTH") or "0"
    return re.fullmatch(r"[0-9]{1,10}", length) is not None and int(length) <= _LONGEST_BODY


class _BrokenBodyError(Exception):
    """A body in chunks whose chunks are not as RFC 9112 has them, or that is too long."""


def _reader(environ: dict[str, Any]) -> Callable[[], bytes]:
    """Reads the body once. Reading raises _BrokenBodyError."""

    @functools.cache
    def read() -> bytes:
        stream = environ["wsgi.input"]
        if not environ.get("wsgi.input_terminated"):
            return bytes(stream.read(int(environ.get("CONTENT_LENGTH") or 0)))
        try:  # sent in chunks, without a length
            body = bytes(stream.read(_LONGEST_BODY + 1))
        except TimeoutError:
            raise
        except OSError:
            raise _BrokenBodyError(_BROKEN_BODY) from None
        if len(body) > _LONGEST_BODY:
            raise _BrokenBodyError(_BROKEN_BODY)
        return body

    return read


def _large(environ: dict[str, Any]) -> bool:
    """Whether a body is too large to be read only for its first words."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    return bool(environ.get("wsgi.input_terminated")) or length > 1 << 16


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
        body = bodies.peeked(environ)
        if path.startswith("/_lab/"):
            return _admin(admin, path[len("/_lab/") :], body, start_response)
        action, parameters = _request(body)
        if not action:
            return moto(environ, start_response)
        fault = faults.take(action, parameters)
        if fault:
            return _injected(fault, parameters, start_response)
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][_region(environ)]
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


def _region(environ: dict[str, Any]) -> str:
    scope = re.search(r"Credential=[^/]+/[0-9]+/([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
    return scope.group(1) if scope else "us-east-1"


def _injected(
    fault: Fault, parameters: dict[str, str], start_response: Callable[..., Any]
) -> list[bytes]:
    status, message = ERRORS.get(fault.code, (400, ""))
    text = (fault.message or message).replace("{InstanceType}", parameters.get("InstanceType", ""))
    log.info("injected failure: %s %s", fault.action, fault.code)
    return _error(status, fault.code, text, start_response)


def _error(status: int, code: str, message: str, start_response: Callable[..., Any]) -> list[bytes]:
    xml = (
        '<?xml version="1.0" encoding="UTF-8"?><Response><Errors><Error>'
        f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
        f"</Error></Errors><RequestID>{uuid.uuid4()}</RequestID></Response>"
    )
    return _xml(f"{status} {code}", xml, start_response)


def _xml(status: str, xml: str, start_response: Callable[..., Any]) -> list[bytes]:
    data = xml.encode()
    start_response(
        status, [("Content-Type", "text/xml;charset=UTF-8"), ("Content-Length", str(len(data)))]
    )
    return [data]


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
