"""A request is judged as what it does: no key gets more by a request that says a thing twice.

Each attack worked against the lab: a user without a permission became any role, read another's
bucket, or ran commands as root in every guest.
"""

from __future__ import annotations

import functools
import gzip
import io
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from lab.access import gate, questions
from lab.access.iam_policy import Policies
from lab.access.keys import Key
from lab.api import entry
from tests.unit.test_lab_access import ROLE, allow, deny, document, look

OWNER = Key("KILNOWNOWNOWNOWNOWN2", "the-secret", "the user of lab0")
EVE = Key("AKIAEXAMPLE", "a-secret", "eve")
HERE = "127.0.0.1:4599"
FORM = "application/x-www-form-urlencoded"
JSON = "application/x-amz-json-1.1"
ASSUME = "Action=AssumeRole&RoleArn=arn:aws:iam::123456789012:role/boss&RoleSessionName=x"
WHO = "Action=GetCallerIdentity"
COMMAND = '{"DocumentName":"AWS-RunShellScript","InstanceIds":["i-0123456789abcdef0"]}'
SEND = {"X-Amz-Target": "AmazonSSM.SendCommand"}
LISTS = (allow("s3:ListAllMyBuckets"), allow("logs:*"))
READS = (allow(["s3:GetObject", "s3:DeleteObject"], "arn:aws:s3:::mine/*"),)


def asking(*statements: dict[str, Any]) -> Any:
    """What sends a request with eve's key: it returns the status, and what came through."""
    reached: list[Any] = []

    def inner(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        reached.append((environ, questions.read(environ, body)))
        start_response("200 OK", [])
        return [b""]

    policies = Policies((document(*statements),))
    refusal = functools.partial(
        gate.refusal, holders=lambda _: (ROLE, policies), look=look, attached=lambda *_: None
    )
    find = {key.id: key for key in (OWNER, EVE)}.get
    app = entry.guard(inner, find, owner=OWNER.id, addresses=[], refusal=refusal)

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


# Name → the statements, service, body, and what else is said.
ATTACKS: dict[str, tuple[tuple[Any, ...], str, str | bytes, dict[str, str]]] = {
    "an action twice": ((), "sts", f"{ASSUME}&{WHO}", {}),
    "an action in the body and one in the query": ((), "sts", ASSUME, {"query": WHO}),
    "a form in other letters": ((), "sts", ASSUME, {"query": WHO, "kind": FORM.title()}),
    "an action and a target": ((), "sts", ASSUME, {"X_Amz_Target": "x.GetCallerIdentity"}),
    "an action and a path": ((), "sts", ASSUME, {"path": "/service/x/operation/GetCallerIdentity"}),
    "an action in a header": ((), "sts", "", {"query": WHO, "Action": "AssumeRole"}),
    "a form in parts": (
        (), "sts",
        '--x\r\nContent-Disposition: form-data; name="Action"\r\n\r\nAssumeRole\r\n--x--',
        {"query": WHO, "kind": "multipart/form-data; boundary=x"},
    ),
    "a body that is said to be compressed": (
        (), "sts", ASSUME, {"query": WHO, "Content_Encoding": "gzip"}
    ),
    "something after the compressed body": (
        (), "sts", gzip.compress(WHO.encode()) + b"&" + ASSUME.encode(),
        {"Content_Encoding": "gzip"},
    ),
    "another service's signature": (LISTS, "logs", COMMAND, {"kind": JSON, **SEND}),
    "the signature of S3": (LISTS, "s3", COMMAND, {"kind": JSON, **SEND}),
    "an action that is not in a form": (
        (allow("ec2:*"), deny("ec2:RunInstances")), "ec2", "Action=RunInstances",
        {"kind": "text/plain"},
    ),
    "a host that names another bucket": (
        READS, "s3", "", {"method": "GET", "host": "other.localhost:4599", "path": "/mine/key"}
    ),
    "a host that names none": (
        READS, "s3", "",
        {"method": "GET", "host": "localhost-1.s3.amazonaws.com", "path": "/mine/key"},
    ),
    "a prefix twice": (
        (allow("s3:ListBucket", Condition={"StringLike": {"s3:prefix": "mine/*"}}),), "s3", "",
        {"method": "GET", "path": "/b", "query": "prefix=other%2F&prefix=mine%2Fx"},
    ),
    "a key to delete with an attribute": (
        READS, "s3", "<Delete><Key>a</Key><Key x='1'></Key></Delete>",
        {"query": "delete=", "path": "/mine"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_a_request_with_two_meanings_is_refused(name: str) -> None:
    statements, service, body, more = ATTACKS[name]
    status, reached = asking(*statements)(service, body, **more)
    assert (status, reached) in ((400, None), (403, None))


@pytest.mark.parametrize("name", ["before", "after"])
def test_a_second_key_in_the_header_is_seen_by_nobody(name: str) -> None:
    """The lab's CloudFormation took the first one: it made stacks with the lab's own key."""
    other = f"Credential={OWNER.id}/20261124/us-east-1/cloudformation/aws4_request"
    more = {"before": f"{other}, ", "after": f", X={other}"}
    status, reached = asking()("sts", WHO, **{name: more[name]})
    assert status == 200
    environ, call = reached
    assert OWNER.id not in environ["HTTP_AUTHORIZATION"]
    assert (call.service, call.action) == ("sts", "GetCallerIdentity")


def test_what_is_allowed_comes_through() -> None:
    send = asking(*READS, *LISTS, allow("lambda:*"), allow("cloudwatch:PutMetricData"))
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


def test_a_denied_action_of_a_service_denies_calls_that_the_lab_cannot_name() -> None:
    invoke = {"kind": JSON, "path": "/2015-03-31/functions/f/invocations"}
    denied = asking(allow("lambda:*"), deny("lambda:Invoke*"))("lambda", "{}", **invoke)
    allowed = asking(allow("*"), deny("iam:*"))("lambda", "{}", **invoke)
    assert denied == (400, None)
    assert allowed[0] == 200
