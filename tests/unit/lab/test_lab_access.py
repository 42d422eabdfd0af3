"""The lab's API takes only requests with a session token of the lab, and none of a web page.

Requests are made by boto3 as a client sends them, and given to the lab's WSGI application.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
import pytest
from botocore.exceptions import ClientError

from kiln.base.errors import KilnError
from lab.api import session_token, web_pages
from lab.api.dispatch import Api, Callers
from lab.api.faults import Faults
from lab.base import folders
from lab.base.settings import Lab

OWN, ROLE = "the-token-of-the-lab", "the-token-of-a-role"
ENDPOINT = "http://127.0.0.1:4599"
GATEWAY = "10.201.0.1"


class Guarded:
    """The guarded application, in front of one that only notes what comes through."""

    def __init__(self) -> None:
        self.reached: list[dict[str, Any]] = []
        callers = Callers(OWN, lambda token: token == ROLE, [GATEWAY])
        self.app = Api(self._inner, Faults(), self._admin, callers)

    def _inner(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        self.reached.append(environ)
        start_response(
            "200 OK", [("Content-Type", "text/xml"), ("Access-Control-Allow-Origin", "*")]
        )
        return [b"<ok/>"]

    def _admin(self, path: str, body: Any) -> dict[str, str]:
        self.reached.append({"path": path})
        return {}

    def send(
        self, method: str, url: str, headers: dict[str, str], body: bytes = b""
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers and text of the answer."""
        parts = urlsplit(url)
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": unquote(parts.path),
            "QUERY_STRING": parts.query,
            "HTTP_HOST": parts.netloc,
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
        }
        for name, value in headers.items():
            variable = name.upper().replace("-", "_")
            environ[variable if variable == "CONTENT_TYPE" else f"HTTP_{variable}"] = value
        answer: list[Any] = []
        content = self.app(environ, lambda status, found: answer.extend([status, dict(found)]))
        return int(answer[0].split()[0]), answer[1], b"".join(content).decode()


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


def client(guarded: Guarded, service: str, token: str | None) -> Any:
    """A boto3 client whose requests go to `guarded`."""
    made = boto3.client(
        service,  # type: ignore[call-overload]
        endpoint_url=ENDPOINT,
        region_name="us-east-1",
        aws_access_key_id=session_token.KEY_ID,
        aws_secret_access_key=session_token.SECRET_KEY,
        aws_session_token=token,
    )

    class Response:
        def __init__(self, status: int, headers: dict[str, str], text: str) -> None:
            self.status_code, self.headers = status, headers
            self.content, self.text = text.encode(), text

    def send(request: Any, **_: Any) -> Any:
        headers = {
            name: value.decode("latin-1") if isinstance(value, bytes) else value
            for name, value in request.headers.items()
        }
        return Response(*guarded.send(request.method, request.url, headers))

    made.meta.events.register("before-send.*.*", send)
    return made


CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "ec2": ("AuthFailure", lambda client: client.describe_instances()),
    "sts": ("InvalidClientTokenId", lambda client: client.get_caller_identity()),
    "ssm": ("UnrecognizedClientException", lambda client: client.get_parameter(Name="/a")),
    "s3": ("AccessDenied", lambda client: client.list_objects_v2(Bucket="bucket")),
}


@pytest.mark.parametrize("service", CALLS)
@pytest.mark.parametrize("token", [None, OWN[:-1], OWN + "x"])
def test_call_without_lab_token_gets_403(guarded: Guarded, service: str, token: str | None) -> None:
    code, call = CALLS[service]
    with pytest.raises(ClientError) as refused:
        call(client(guarded, service, token))
    answer = refused.value.response
    assert (answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]) == (403, code)
    assert "./invoke lab.up prints it" in answer["Error"]["Message"]
    assert guarded.reached == []


@pytest.mark.parametrize("token", [OWN, ROLE])
def test_lab_and_role_tokens_pass(guarded: Guarded, token: str) -> None:
    for service in ("ec2", "s3"):
        CALLS[service][1](client(guarded, service, token))
    assert len(guarded.reached) == 2


@pytest.mark.parametrize("path", ["/_lab/down", "/_lab/faults", "/_lab/status", "/moto-api/reset"])
def test_lab_calls_need_the_labs_own_token(guarded: Guarded, path: str) -> None:
    for token in ("", ROLE):
        assert guarded.send("POST", ENDPOINT + path, {session_token.HEADER: token}, b"{}")[0] == 403
    assert guarded.reached == []
    assert guarded.send("POST", ENDPOINT + path, {session_token.HEADER: OWN}, b"{}")[0] == 200


def test_health_is_open_and_says_nothing(guarded: Guarded) -> None:
    assert guarded.send("GET", f"{ENDPOINT}/_lab/health", {})[::2] == (200, "up\n")
    assert guarded.send("GET", "http://evil.example/_lab/health", {})[0] == 403


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1:4599", True),
        ("bucket.localhost:4599", True),
        ("[::1]:4599", True),
        (GATEWAY, True),
        ("ec2.us-east-1.amazonaws.com", True),
        ("bucket.s3.cn-north-1.amazonaws.com.cn", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("amazonaws.com.evil.example", False),
        ("evilamazonaws.com", False),
        ("10.202.0.1", False),
        ("", False),
    ],
)
def test_only_names_of_lab_or_aws_are_answered(host: str, here: bool) -> None:
    assert (web_pages.sent_by_page({"HTTP_HOST": host}, [GATEWAY]) == "") is here


def test_web_page_is_rejected_even_with_the_token(guarded: Guarded) -> None:
    with_token = {session_token.HEADER: OWN}
    for origin in ("https://evil.example", "null", ENDPOINT):
        headers = with_token | {"Origin": origin}
        status, answered, _ = guarded.send("POST", f"{ENDPOINT}/", headers, b"{}")
        assert status == 403
        assert not [name for name in answered if name.lower().startswith("access-control")]
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert guarded.send("OPTIONS", f"{ENDPOINT}/_lab/down", preflight)[0] == 403
    assert guarded.send("POST", "http://evil.example/", with_token, b"{}")[0] == 403
    assert guarded.reached == []


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(7, tmp_path / "kiln-lab")


def test_token_outlives_a_new_start_and_only_its_owner_reads_it(lab: Lab) -> None:
    assert session_token.read(lab) == ""
    with pytest.raises(KilnError, match="no session token"):
        session_token.require(lab)
    assert not lab.root.exists(), "who only asks makes nothing"
    folders.private(lab.root, lab.state)
    before = os.umask(0)
    try:
        token = session_token.ensure(lab)
    finally:
        os.umask(before)
    assert session_token.require(lab) == session_token.ensure(lab) == token
    assert len({*token}) > 15
    (file,) = lab.state.iterdir()
    modes = [stat.S_IMODE(path.lstat().st_mode) for path in (file, lab.state, lab.root)]
    assert modes == [0o600, 0o700, 0o700]


def test_empty_token_opens_nothing() -> None:
    assert not session_token.is_same("", "")
