"""CloudFormation's API, in front of moto: the query protocol in, XML out.

A stack's resources are made by calls to the lab's own API, with the key of who asked: what its
policies do not allow fails there, as it does on AWS.
"""

from __future__ import annotations

import functools
import logging
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from moto.core import DEFAULT_ACCOUNT_ID

from lab.access import bodies, questions
from lab.access.keys import Key, Lookup
from lab.cloudformation import calls
from lab.cloudformation.errors import CloudFormationError
from lab.cloudformation.kinds.kind import Place

log = logging.getLogger("lab.cloudformation")
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_SCOPE = re.compile(r"Credential=([^/]+)/[0-9]+/([^/]+)/cloudformation/")
_NAMESPACE = "http://cloudformation.amazonaws.com/doc/2010-05-15/"
REAL = calls.NAMES


class CloudFormation:
    """The stacks of all regions; `find` knows the keys."""

    def __init__(self, find: Lookup) -> None:
        self._find = find
        self._regions: dict[str, calls.Region] = defaultdict(calls.Region)

    def over(self, moto: Application) -> Application:
        """`moto`, with CloudFormation's calls answered here."""

        def application(environ: Any, start_response: Callable[..., Any]) -> Iterable[bytes]:
            scope = _SCOPE.search(str(environ.get("HTTP_AUTHORIZATION", "")))
            if scope is None:
                return moto(environ, start_response)
            body = bodies.peeked(environ)
            status, text = self._answer(scope[1], scope[2], environ, body)
            data = text.encode()
            start_response(
                status, [("Content-Type", "text/xml"), ("Content-Length", str(len(data)))]
            )
            return [data]

        return application

    def _answer(self, key: str, region: str, environ: Any, body: bytes) -> tuple[str, str]:
        request = read_query(body.decode("utf-8", "replace"))
        request.pop("Action", None)
        call = questions.read(environ, body).action
        request.pop("Version", None)
        endpoint = f"http://127.0.0.1:{environ['SERVER_PORT']}"
        place = functools.partial(self._place, self._find(key), endpoint, region)
        try:
            result = calls.answer(self._regions[region], call, request, place)
        except CloudFormationError as error:
            log.info("%s: %s", call, error.message)
            return "400 Bad Request", _error(error)
        return "200 OK", _xml(call, result)

    def _place(self, key: Key | None, endpoint: str, region: str, request: calls.Request) -> Place:
        if key is None:
            raise CloudFormationError("the key is not known", "AccessDenied")
        tags = tuple((tag["Key"], tag["Value"]) for tag in request.get("Tags", []))
        client = functools.partial(_client, key, endpoint, region)
        return Place(client, str(request["StackName"]), region, DEFAULT_ACCOUNT_ID, tags)


@functools.lru_cache(maxsize=64)
def _client(key: Key, endpoint: str, region: str, service: str) -> Any:
    import boto3

    session: Any = boto3.session.Session()
    client = session.client(
        service,
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id=key.id,
        aws_secret_access_key=key.secret,
        aws_session_token=key.token,
    )
    client.meta.events.register("before-sign", _called_via)
    return client


def _called_via(request: Any, **_: Any) -> None:
    request.headers[questions.VIA_HEADER] = questions.VIA


def read_query(text: str) -> dict[str, Any]:
    """The parameters of the query protocol as data: `Tags.member.1.Key=a` is a list of maps."""
    fields: dict[str, Any] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        node = fields
        *path, last = name.split(".")
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return {key: _listed(item) for key, item in fields.items()}


def _listed(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if set(node) == {"member"}:
        members = node["member"]
        return [_listed(members[number]) for number in sorted(members, key=int)]
    return {key: _listed(part) for key, part in node.items()}


def _xml(call: str, result: Any) -> str:
    inner = "" if result is None else f"<{call}Result>{_element(result)}</{call}Result>"
    meta = f"<ResponseMetadata><RequestId>{uuid.uuid4()}</RequestId></ResponseMetadata>"
    return f'<{call}Response xmlns="{_NAMESPACE}">{inner}{meta}</{call}Response>'


def _element(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(f"<{key}>{_element(part)}</{key}>" for key, part in value.items())
    if isinstance(value, list | tuple):
        return "".join(f"<member>{_element(part)}</member>" for part in value)
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return escape(str(value).lower() if isinstance(value, bool) else str(value))


def _error(error: CloudFormationError) -> str:
    return (
        f'<ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>Sender</Type><Code>{error.code}</Code>'
        f"<Message>{escape(error.message)}</Message></Error>"
        f"<RequestId>{uuid.uuid4()}</RequestId></ErrorResponse>"
    )
