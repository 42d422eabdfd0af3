"""A request that says a thing twice is refused."""

from __future__ import annotations

import gzip
import io
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from lab.access.keys import Key
from lab.api import entry

OWNER = Key("KILNOWNOWNOWNOWNOWN2", "the-secret", "the user of lab0")
EVE = Key("AKIAEXAMPLE", "a-secret", "eve")
HERE = "127.0.0.1:4599"
FORM = "application/x-www-form-urlencoded"
JSON = "application/x-amz-json-1.1"
ASSUME = "Action=AssumeRole&RoleArn=arn:aws:iam::123456789012:role/boss&RoleSessionName=x"
WHO = "Action=GetCallerIdentity"


def asking() -> Any:
    """What sends a request with eve's key: it returns the status, and what came through."""
    reached: list[Any] = []

    def inner(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        reached.append((environ, body))
        start_response("200 OK", [])
        return [b""]

    find = {key.id: key for key in (OWNER, EVE)}.get
    app = entry.guard(inner, find, owner=OWNER.id, addresses=[])

    def send(
        service: str, body: str | bytes = "", *, kind: str = FORM, query: str = "", path: str = "/",
        host: str = HERE, method: str = "POST", before: str = "", after: str = "", **headers: str,
    ) -> tuple[int, Any]:  # fmt: skip
        data = body if isinstance(body, bytes) else body.encode()
        request = AWSRequest(method, f"http://{host}{path}?{query}", data=data)
        request.headers["Content-Type"] = kind
        for name, value in headers.items():
            request.headers[name.replace("_", "-")] = value
        if service == "s3":
            request.headers["X-Amz-Content-SHA256"] = "UNSIGNED-PAYLOAD"
        signer = SigV4Auth(Credentials(EVE.id, EVE.secret), service, "us-east-1")
        signer.add_auth(request)
        sent = urlsplit(request.url)
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "REQUEST_URI": f"{sent.path}?{sent.query}",
            "PATH_INFO": sent.path,
            "QUERY_STRING": sent.query,
            "HTTP_HOST": host,
            "CONTENT_LENGTH": str(len(data)),
            "wsgi.input": io.BytesIO(data),
        }
        for name, value in request.headers.items():
            variable = name.upper().replace("-", "_")
            plain = variable in ("CONTENT_TYPE", "CONTENT_LENGTH")
            environ[variable if plain else f"HTTP_{variable}"] = str(value)
        header = environ["HTTP_AUTHORIZATION"]
        environ["HTTP_AUTHORIZATION"] = header.replace(" ", f" {before}", 1) + after
        answer: list[str] = []
        list(app(environ, lambda status, _: answer.append(status)))
        return int(answer[0].split()[0]), reached[-1] if reached else None

    return send


# Name → the service, body, and what else is said.
ATTACKS: dict[str, tuple[str, str | bytes, dict[str, str]]] = {
    "an action twice": ("sts", f"{ASSUME}&{WHO}", {}),
    "an action in the body and one in the query": ("sts", ASSUME, {"query": WHO}),
    "a form in other letters": ("sts", ASSUME, {"query": WHO, "kind": FORM.title()}),
    "an action and a target": ("sts", ASSUME, {"X_Amz_Target": "x.GetCallerIdentity"}),
    "an action and a path": ("sts", ASSUME, {"path": "/service/x/operation/GetCallerIdentity"}),
    "an action in a header": ("sts", "", {"query": WHO, "Action": "AssumeRole"}),
    "a form in parts": (
        "sts",
        '--x\r\nContent-Disposition: form-data; name="Action"\r\n\r\nAssumeRole\r\n--x--',
        {"query": WHO, "kind": "multipart/form-data; boundary=x"},
    ),
    "a body that is said to be compressed": (
        "sts", ASSUME, {"query": WHO, "Content_Encoding": "gzip"}
    ),
    "something after the compressed body": (
        "sts", gzip.compress(WHO.encode()) + b"&" + ASSUME.encode(),
        {"Content_Encoding": "gzip"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_a_request_with_two_meanings_is_refused(name: str) -> None:
    service, body, more = ATTACKS[name]
    assert asking()(service, body, **more) == (400, None)


@pytest.mark.parametrize("name", ["before", "after"])
def test_a_second_key_in_the_header_is_seen_by_nobody(name: str) -> None:
    other = f"Credential={OWNER.id}/20261124/us-east-1/sts/aws4_request"
    more = {"before": f"{other}, ", "after": f", X={other}"}
    status, reached = asking()("sts", WHO, **{name: more[name]})
    assert status == 200
    assert OWNER.id not in reached[0]["HTTP_AUTHORIZATION"]


def test_what_is_allowed_comes_through() -> None:
    send = asking()
    form = b"Action=PutMetricData&Version=2010-08-01&Namespace=Kiln"
    for service, body, more in (
        ("sts", WHO, {}),
        ("sts", "", {"method": "GET", "query": WHO}),
        ("monitoring", gzip.compress(form), {"Content_Encoding": "gzip"}),
        ("logs", "{}", {"kind": JSON, "X_Amz_Target": "Logs_20140328.PutLogEvents"}),
        ("lambda", "{}", {"kind": JSON, "path": "/2015-03-31/functions/f/invocations"}),
        ("lambda", "", {"path": "/2017-03-31/tags/f", "query": "tagKeys=a&tagKeys=b"}),
        ("s3", "", {"method": "GET", "path": "/mine/key"}),
        ("s3", "", {"method": "GET", "path": "/key", "host": "mine.s3.us-east-1.amazonaws.com"}),
        ("s3", "<Delete><Key>a</Key></Delete>", {"query": "delete=", "path": "/mine"}),
    ):  # fmt: skip
        status, reached = send(service, body, **more)
        assert status == 200, (service, more)
        assert "HTTP_CONTENT_ENCODING" not in reached[0]
