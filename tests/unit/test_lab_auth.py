"""The lab's API takes only requests that are signed with a key of the lab, and none of a web page.

Requests are signed by boto3 as a client sends them, and given to the lab's WSGI application.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from http.client import HTTPMessage
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from werkzeug.serving import DechunkedInput

from lab.access import auth
from lab.access.keys import Key
from lab.api import entry, web

OWN = Key("KILNOWNOWNOWNOWNOWN2", "the-secret", "the user of lab0")
ROLE = Key("ASIAROLEROLEROLEROLE", "a-role's-secret", "role r", token="the-token")
OVER = Key("ASIAOVEROVEROVEROVER", "a-secret", "role r", token="its-token", expires=1.0)
KEYS = {OWN.id: OWN, ROLE.id: ROLE, OVER.id: OVER}
ENDPOINT = "http://127.0.0.1:4599"
GATEWAY = "10.201.0.1"


class Lab:
    """The guarded application, in front of one that only notes what comes through."""

    def __init__(self) -> None:
        self.reached: list[dict[str, Any]] = []
        self.app = entry.guard(self._inner, KEYS.get, owner=OWN.id, addresses=[GATEWAY])

    def _inner(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        self.reached.append({**environ, "body": body})
        start_response(
            "200 OK",
            [("Content-Type", "text/xml"), ("Access-Control-Allow-Origin", "*")],
        )
        return [b"<ok/>"]

    def send(
        self, method: str, url: str, headers: dict[str, str], body: bytes = b"", **more: Any
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers and text of the answer."""
        parts = urlsplit(url)
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "REQUEST_URI": f"{parts.path}?{parts.query}" if parts.query else parts.path,
            "PATH_INFO": unquote(parts.path),
            "QUERY_STRING": parts.query,
            "HTTP_HOST": parts.netloc,
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
        }
        for name, value in headers.items():
            variable = name.upper().replace("-", "_")
            plain = variable in ("CONTENT_TYPE", "CONTENT_LENGTH")
            environ[variable if plain else f"HTTP_{variable}"] = value
        environ |= more
        answer: list[Any] = []
        content = self.app(environ, lambda status, found: answer.extend([status, dict(found)]))
        return int(answer[0].split()[0]), answer[1], b"".join(content).decode()


@pytest.fixture
def lab() -> Lab:
    return Lab()


Call = Callable[[Any], Any]


class _SentError(Exception):
    """Carries the request that a client was about to send."""


# To create a client takes longer than all that a test does with it.
_CLIENTS: dict[str, Any] = {}


def _client(service: str, key: Key, config: dict[str, Any]) -> Any:
    """A client that raises _SentError instead of sending."""
    wanted = repr((service, key.id, key.secret, key.token, config))
    if wanted not in _CLIENTS:
        client = boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=ENDPOINT,
            region_name="us-east-1",
            aws_access_key_id=key.id,
            aws_secret_access_key=key.secret,
            aws_session_token=key.token,
            config=Config(**config),
        )

        def stop(request: Any, **_: Any) -> None:
            raise _SentError(request)

        client.meta.events.register("before-send.*.*", stop)
        _CLIENTS[wanted] = client
    return _CLIENTS[wanted]


def as_sent(service: str, call: Call, key: Key = OWN, **config: Any) -> Any:
    """The HTTP request that boto3 makes of a call."""
    with pytest.raises(_SentError) as sent:
        call(_client(service, key, config))
    return sent.value.args[0]


def send(lab: Lab, request: Any, **more: Any) -> tuple[int, dict[str, str], str]:
    headers = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in request.headers.items()
    }
    body = request.body or b""
    data = body.read() if hasattr(body, "read") else body
    data = data.encode() if isinstance(data, str) else data
    return lab.send(request.method, request.url, headers, data, **more)


def describe(client: Any) -> Any:
    return client.describe_instances(Filters=[{"Name": "tag:a b", "Values": ["c+d"]}])


CALLS: dict[str, tuple[str, Call, dict[str, Any]]] = {
    "ec2": ("ec2", describe, {}),
    "sts": ("sts", lambda client: client.get_caller_identity(), {}),
    "ssm": ("ssm", lambda client: client.get_parameter(Name="/aws/service/x"), {}),
    "cloudwatch": ("cloudwatch", lambda client: client.list_metrics(Namespace="a"), {}),
    "logs": ("logs", lambda client: client.describe_log_groups(), {}),
    "lambda": ("lambda", lambda client: client.get_function(FunctionName="arn:aws:l/a b"), {}),
    "route53": ("route53", lambda client: client.list_hosted_zones(), {}),
    "s3 get": ("s3", lambda client: client.get_object(Bucket="b", Key="a+b/c d%20ü~(x)"), {}),
    "s3 list": ("s3", lambda client: client.list_objects_v2(Bucket="b", Prefix="a b+c/"), {}),
    "s3 put": (
        "s3",
        lambda client: client.put_object(
            Bucket="b", Key="k", Body=b"text", Metadata={"my_key": "a  b"}
        ),
        {},
    ),
    "s3 unsigned payload": (
        "s3",
        lambda client: client.put_object(Bucket="b", Key="k", Body=b"text"),
        {"s3": {"payload_signing_enabled": False}},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_client_signs_comes_through(lab: Lab, name: str) -> None:
    service, call, config = CALLS[name]
    status, _, text = send(lab, as_sent(service, call, **config))
    assert (status, len(lab.reached)) == (200, 1), text


@pytest.mark.parametrize("name", CALLS)
def test_with_another_secret_it_does_not(lab: Lab, name: str) -> None:
    service, call, config = CALLS[name]
    request = as_sent(service, call, Key(OWN.id, "another", "nobody"), **config)
    assert send(lab, request)[0] in (400, 401, 403)
    assert lab.reached == []


def presigned(service: str, operation: str, key: Key = OWN, **parameters: Any) -> str:
    client = boto3.client(
        service,
        endpoint_url=ENDPOINT,
        region_name="us-east-1",
        aws_access_key_id=key.id,
        aws_secret_access_key=key.secret,
        aws_session_token=key.token,
        config=Config(signature_version="s3v4") if service == "s3" else None,
    )
    url: str = client.generate_presigned_url(operation, Params=parameters, HttpMethod="GET")
    return url


@pytest.mark.parametrize("key", [OWN, ROLE])
def test_a_presigned_url_comes_through_until_it_is_changed(lab: Lab, key: Key) -> None:
    for url in (
        presigned("s3", "get_object", key, Bucket="b", Key="a b+ü"),
        presigned("sts", "get_caller_identity", key),
    ):
        lab.reached.clear()
        assert lab.send("GET", url, {})[0] == 200
        assert lab.send("GET", url.replace("a%20b", "a%20c") + "&more=1", {})[0] == 403
        assert lab.send("PUT", url, {}, b"other")[0] == 403
        assert len(lab.reached) == 1


def signed(
    body: bytes = b"{}",
    headers: dict[str, str] | None = None,
    *,
    url: str = f"{ENDPOINT}/",
    service: str = "ssm",
    key: Key = OWN,
) -> dict[str, str]:
    """The headers of a request that botocore signs, without a client around it."""
    request = AWSRequest("POST", url, headers or {}, body)
    SigV4Auth(Credentials(key.id, key.secret, key.token), service, "us-east-1").add_auth(request)
    return dict(request.headers.items())


def test_another_body_another_query_or_a_header_more_is_refused(lab: Lab) -> None:
    headers = signed()
    assert lab.send("POST", f"{ENDPOINT}/", headers, b"{}")[0] == 200
    for url, more, body in (
        (f"{ENDPOINT}/", {}, b'{"a": 1}'),
        (f"{ENDPOINT}/?a=1", {}, b"{}"),
        (f"{ENDPOINT}/other", {}, b"{}"),
        (f"{ENDPOINT}/", {"X-Amz-Target": "AmazonSSM.DeleteParameter"}, b"{}"),
        ("http://localhost:4599/", {}, b"{}"),
    ):
        status, _, text = lab.send("POST", url, headers | more, body)
        assert status == 400, text
        assert "InvalidSignatureException" in text
    assert len(lab.reached) == 1


def test_a_signature_is_valid_for_fifteen_minutes(lab: Lab) -> None:
    request = as_sent("ssm", lambda client: client.describe_parameters())
    environ = {
        "REQUEST_METHOD": "POST",
        "REQUEST_URI": "/",
        "HTTP_HOST": "127.0.0.1:4599",
        **{
            f"HTTP_{name.upper().replace('-', '_')}": str(value, "ascii")
            if isinstance(value, bytes)
            else value
            for name, value in request.headers.items()
        },
    }
    environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE")
    stamp = auth.datetime.strptime(environ["HTTP_X_AMZ_DATE"], auth._TIMESTAMP)
    made = stamp.replace(tzinfo=auth.timezone.utc).timestamp()

    def judged(now: float) -> str:
        try:
            return auth.caller(environ, lambda: request.body, KEYS.get, now=lambda: now).id
        except auth.RefusedError as refused:
            return refused.kind

    assert judged(made + 899) == judged(made - 899) == OWN.id
    assert judged(made + 901) == judged(made - 901) == "late"


def test_a_presigned_url_of_more_than_seven_days_is_refused(lab: Lab) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=ENDPOINT,
        region_name="us-east-1",
        aws_access_key_id=OWN.id,
        aws_secret_access_key=OWN.secret,
        config=Config(signature_version="s3v4"),
    )
    for days, wanted in ((7, 200), (8, 403)):
        url = client.generate_presigned_url(
            "get_object", Params={"Bucket": "b", "Key": "k"}, ExpiresIn=days * 24 * 3600
        )
        assert lab.send("GET", url, {})[0] == wanted


class _Hostless(SigV4Auth):
    """Signs without the host, as no client of AWS may."""

    def headers_to_sign(self, request: Any) -> Any:
        headers = super().headers_to_sign(request)  # type: ignore[misc]
        del headers["host"]
        return headers


def test_a_signature_must_cover_the_host(lab: Lab) -> None:
    request = AWSRequest("POST", f"{ENDPOINT}/", {}, b"{}")
    _Hostless(Credentials(OWN.id, OWN.secret), "ssm", "us-east-1").add_auth(request)
    status, _, text = lab.send("POST", f"{ENDPOINT}/", dict(request.headers.items()), b"{}")
    assert status == 400
    assert "does not cover the host" in text
    assert lab.reached == []


def test_a_body_that_is_not_the_one_of_its_hash_is_refused(lab: Lab) -> None:
    request = as_sent("s3", lambda client: client.put_object(Bucket="b", Key="k", Body=b"text"))
    for body, wanted in ((b"text", 200), (b"texx", 403)):
        headers = {
            name: value.decode() if isinstance(value, bytes) else str(value)
            for name, value in request.headers.items()
        }
        assert lab.send("PUT", request.url, headers, body)[0] == wanted


UNSIGNED = {
    "ec2": (
        {"Content-Type": "application/x-www-form-urlencoded"},
        b"Action=RunInstances&Version=2016-11-15",
        (401, "<Code>AuthFailure</Code>"),
    ),
    "sts": (
        {"Content-Type": "application/x-www-form-urlencoded"},
        b"Action=GetCallerIdentity&Version=2011-06-15",
        (403, "<Code>MissingAuthenticationToken</Code>"),
    ),
    "ssm": (
        {"X-Amz-Target": "AmazonSSM.GetParameter", "Content-Type": "application/x-amz-json-1.1"},
        b"{}",
        (400, '"MissingAuthenticationTokenException"'),
    ),
    "s3": ({}, b"", (403, "<Code>AccessDenied</Code>")),
    "basic": ({"Authorization": "Basic YTpi"}, b"", (403, "<Code>AccessDenied</Code>")),
    "version 2": ({"Authorization": "AWS KILN:sig"}, b"", (403, "<Code>AccessDenied</Code>")),
}


@pytest.mark.parametrize("name", UNSIGNED)
def test_an_unsigned_call_gets_the_services_error(lab: Lab, name: str) -> None:
    headers, body, (wanted, code) = UNSIGNED[name]
    status, _, text = lab.send("POST", f"{ENDPOINT}/", headers, body)
    assert status == wanted
    assert code in text
    assert lab.reached == []


# What SDKs know an expired token by: they fetch a new one.
EXPIRED = {
    "ec2": (400, "RequestExpired"),
    "sts": (403, "ExpiredToken"),
    "ssm": (400, "ExpiredTokenException"),
    "s3 list": (400, "ExpiredToken"),
}


@pytest.mark.parametrize("name", EXPIRED)
def test_a_roles_key_that_has_expired_is_refused_as_such(lab: Lab, name: str) -> None:
    service, call, config = CALLS[name]
    status, _, text = send(lab, as_sent(service, call, OVER, **config))
    assert (status, EXPIRED[name][1] in text) == (EXPIRED[name][0], True), text
    assert lab.reached == []


ERRORS = {
    "ec2": ("AuthFailure", "AuthFailure"),
    "sts": ("InvalidClientTokenId", "SignatureDoesNotMatch"),
    "ssm": ("UnrecognizedClientException", "InvalidSignatureException"),
    "lambda": ("UnrecognizedClientException", "InvalidSignatureException"),
    "s3 list": ("InvalidAccessKeyId", "SignatureDoesNotMatch"),
    "route53": ("InvalidClientTokenId", "SignatureDoesNotMatch"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_client_understands_the_refusal(lab: Lab, name: str) -> None:
    service, call, config = CALLS[name]
    keys = (Key("KILNUNKNOWNUNKNOWN22", "x", "nobody"), Key(OWN.id, "x", "nobody"))
    for key, code in zip(keys, ERRORS[name], strict=True):
        status, headers, text = send(lab, as_sent(service, call, key, **config))
        model = botocore.session.get_session().get_service_model(service)
        parser = botocore.session.get_session().get_component("response_parser_factory")
        answer = {"status_code": status, "headers": headers, "body": text.encode()}
        parsed = parser.create_parser(model.protocol).parse(answer, None)
        assert parsed["Error"]["Code"] == code, text
        assert "./invoke lab.up prints its keys" in parsed["Error"]["Message"]
    assert lab.reached == []


def test_a_keys_session_token_must_come_with_it(lab: Lab) -> None:
    assert send(lab, as_sent("ec2", describe, ROLE))[0] == 200
    for token in (None, "another"):
        stolen = Key(ROLE.id, ROLE.secret, "a thief", token)
        assert send(lab, as_sent("ec2", describe, stolen))[0] == 401


@pytest.mark.parametrize("path", ["/_lab/down", "/_lab/faults", "/_lab/status", "/moto-api/reset"])
def test_the_labs_own_calls_take_the_labs_own_key(lab: Lab, path: str) -> None:
    url = f"{ENDPOINT}{path}"
    assert lab.send("POST", url, {}, b"{}")[0] == 403
    role = signed(url=url, service="kiln-lab", key=ROLE)
    assert lab.send("POST", url, role, b"{}")[0] == 403
    assert lab.reached == []
    own = signed(url=url, service="kiln-lab")
    assert lab.send("POST", url, own, b"{}")[0] == 200


def test_health_is_open_and_says_nothing(lab: Lab) -> None:
    assert lab.send("GET", f"{ENDPOINT}/_lab/health", {})[::2] == (200, "up\n")
    assert lab.send("GET", "http://evil.example/_lab/health", {})[0] == 403


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1:4599", True),
        ("127.1.2.3", True),
        ("localhost:4599", True),
        ("bucket.localhost:4599", True),
        ("[::1]:4599", True),
        (GATEWAY, True),
        ("ec2.us-east-1.amazonaws.com", True),
        ("bucket.s3.cn-north-1.amazonaws.com.cn", True),
        ("evil.example", False),
        ("evil.example:4599", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("amazonaws.com.evil.example", False),
        ("evilamazonaws.com", False),
        ("10.202.0.1", False),
        ("0.0.0.0", False),
        ("", False),
    ],
)
def test_only_names_that_lead_here_by_themselves_are_answered(host: str, here: bool) -> None:
    assert (auth.from_a_page({"HTTP_HOST": host}, [GATEWAY]) == "") is here


def test_a_web_page_is_refused_even_if_it_could_sign(lab: Lab) -> None:
    headers = signed()
    for origin in ("https://evil.example", "null", ENDPOINT):
        status, answered, _ = lab.send("POST", f"{ENDPOINT}/", headers | {"Origin": origin}, b"{}")
        assert status == 403
        assert not [name for name in answered if name.lower().startswith("access-control")]
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert lab.send("OPTIONS", f"{ENDPOINT}/_lab/down", preflight)[0] == 403
    assert lab.reached == []


def test_no_answer_invites_web_pages(lab: Lab) -> None:
    status, headers, _ = lab.send("POST", f"{ENDPOINT}/", signed(), b"{}")
    assert status == 200
    assert headers == {"Content-Type": "text/xml"}


def chunked(
    data: list[bytes], *, trailer: bytes = b"", damage: Callable[[bytes], bytes] = bytes
) -> tuple[dict[str, str], bytes]:
    """Headers and body of a PutObject that is signed chunk by chunk, after AWS's documentation."""
    kind = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" + ("-TRAILER" if trailer else "")
    request = AWSRequest("PUT", f"{ENDPOINT}/b/k", {"X-Amz-Content-SHA256": kind}, b"")
    signer = SigV4Auth(Credentials(OWN.id, OWN.secret), "s3", "us-east-1")
    signer.add_auth(request)
    start = f"{request.context['timestamp']}\n{signer.credential_scope(request)}"
    before = request.headers["Authorization"].rpartition("Signature=")[2]
    body = b""
    for chunk in [*data, b""]:
        empty = auth.hashlib.sha256(b"").hexdigest()
        digest = auth.hashlib.sha256(chunk).hexdigest()
        text = f"AWS4-HMAC-SHA256-PAYLOAD\n{start}\n{before}\n{empty}\n{digest}"
        before = signer.signature(text, request)
        body += b"%x;chunk-signature=%s\r\n%s" % (len(chunk), before.encode(), chunk)
        body += b"\r\n" if chunk or not trailer else b""
    if trailer:
        digest = auth.hashlib.sha256(trailer + b"\n").hexdigest()
        text = f"AWS4-HMAC-SHA256-TRAILER\n{start}\n{before}\n{digest}"
        last = signer.signature(text, request).encode()
        body += trailer + b"\r\nx-amz-trailer-signature:" + last + b"\r\n\r\n"
    return dict(request.headers.items()), damage(body)


@pytest.mark.parametrize("trailer", [b"", b"x-amz-checksum-crc32c:sOO8/Q=="])
def test_a_body_signed_in_chunks_comes_through_until_one_is_changed(
    lab: Lab, trailer: bytes
) -> None:
    headers, body = chunked([b"first" * 20, b"second"], trailer=trailer)
    assert lab.send("PUT", f"{ENDPOINT}/b/k", headers, body)[0] == 200
    for damage in (
        lambda text: text.replace(b"second", b"secund"),
        lambda text: text[:-30],
        lambda text: text + b"more",
        lambda text: text.replace(b"firstfirst", b"first"),
        lambda text: b"plain",
    ):
        headers, body = chunked([b"first" * 20, b"second"], trailer=trailer, damage=damage)
        assert lab.send("PUT", f"{ENDPOINT}/b/k", headers, body)[0] == 403
    assert len(lab.reached) == 1


def test_a_body_without_a_length_is_read_to_its_end(lab: Lab) -> None:
    headers = signed(b"data")
    sent = {"wsgi.input_terminated": True, "CONTENT_LENGTH": ""}
    assert lab.send("POST", f"{ENDPOINT}/", headers, b"data", **sent)[0] == 200
    assert lab.reached[0]["body"] == b"data"


@pytest.mark.parametrize(
    "authorization",
    [
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=, SignedHeaders=, Signature=",
        "AWS4-HMAC-SHA256 Credential=a/b/c/d/aws4_request, SignedHeaders=host",
        f"AWS4-HMAC-SHA256 Credential={OWN.id}/x/us-east-1/ec2/aws4_request, Signature=é",
        "AWS4-ECDSA-P256-SHA256 Credential=a/20260101/s3/aws4_request",
        "\0,=,=",
        "=" * 5000,
    ],
)
def test_a_damaged_signature_is_refused_without_a_traceback(lab: Lab, authorization: str) -> None:
    for stamp in ("", "20260101T000000Z", "x" * 100):
        headers = {"Authorization": authorization, "X-Amz-Date": stamp, "Date": "x"}
        assert lab.send("POST", f"{ENDPOINT}/", headers, b"{}")[0] in (400, 401, 403)
    assert lab.reached == []


def test_a_signature_of_other_letters_is_refused_without_a_traceback(lab: Lab) -> None:
    headers = signed()
    headers["Authorization"] = headers["Authorization"].rpartition("=")[0] + "=é"
    assert lab.send("POST", f"{ENDPOINT}/", headers, b"{}")[0] == 400


def test_no_secret_is_in_what_a_key_shows() -> None:
    assert OWN.secret not in repr(OWN)
    assert str(ROLE.token) not in repr(ROLE)


# What no client sends, and what each of them is answered. A traceback would be a 500.
BROKEN: dict[str, dict[str, str]] = {
    "a year out of range": {"Date": "Fri, 31 Dec 9999 23:59:59 -2300"},
    "a day of 23 digits": {"Date": f"Fri, {'9' * 23} Dec 2026 00:00:00 +0000"},
    "a zone of 20 digits": {"Date": f"Fri, 01 Dec 2026 00:00:00 +{'9' * 20}"},
    "a year of 20 digits": {"Date": f"Fri, 01 Dec {'9' * 20} 00:00:00 +0000"},
    "a signature in Latin-1": {"X-Amz-Date": "20260101T000000Z", "signature": "\xe9" * 64},
    "a key in Latin-1": {"X-Amz-Date": "20260101T000000Z", "key": "\xe9"},
    "a token in Latin-1": {"X-Amz-Date": "20260101T000000Z", "X-Amz-Security-Token": "\xe9"},
    "a date of superscripts": {"X-Amz-Date": "\xb2\xb2\xb2\xb20101T000000Z"},
    "a length of superscripts": {"Content-Length": "\xb2"},
    "a length that is a word": {"Content-Length": "abc"},
    "a negative length": {"Content-Length": "-1"},
    "a length of 5,000 digits": {"Content-Length": "9" * 5000},
    "a length beyond memory": {"Content-Length": "9" * 10},
}


@pytest.mark.parametrize("headers", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("known", [True, False], ids=["a key of the lab", "an unknown key"])
def test_a_broken_request_is_refused_in_a_sentence(
    lab: Lab, headers: dict[str, str], known: bool
) -> None:
    sent = dict(headers)
    key = sent.pop("key", ROLE.id if known else "KILNUNKNOWN")
    scope = f"{key}/20260101/us-east-1/ec2/aws4_request"
    sent["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host;x-amz-date;x-amz-security-token,"
        f" Signature={sent.pop('signature', '0' * 64)}"
    )
    status, _, text = lab.send("POST", f"{ENDPOINT}/", sent, b"Action=DescribeInstances")
    assert status in (400, 401), text
    assert text
    assert not lab.reached


@pytest.mark.parametrize("body", [b"zz\r\n", b"-5\r\nabc\r\n0\r\n\r\n", b"5\r\nhelloxx"])
def test_a_body_in_broken_chunks_is_refused(lab: Lab, body: bytes) -> None:
    request = as_sent("ec2", describe)
    stream = DechunkedInput(io.BytesIO(body))
    more = {"wsgi.input": stream, "wsgi.input_terminated": True, "CONTENT_LENGTH": ""}
    status, _, text = send(lab, request, **more)
    assert (status, lab.reached) == (400, [])
    assert "the body is not in the form" in text


def test_a_header_with_an_underscore_does_not_stand_for_one_with_a_dash() -> None:
    """`X_Amz_Date` is another header than `X-Amz-Date`, which the signature covers."""
    headers = HTTPMessage()
    headers["X-Amz-Date"], headers["X_Amz_Date"] = "signed", "forged"
    headers["X_Amz_Target"] = "forged"
    environ = environ_of(headers)
    assert environ["HTTP_X_AMZ_DATE"] == "signed"
    assert "HTTP_X_AMZ_TARGET" not in environ


def test_two_headers_of_a_name_are_both_seen() -> None:
    """So that what is signed is what is read: neither the first alone nor the last."""
    headers = HTTPMessage()
    headers["X-Amz-Date"] = "one"
    headers["X-Amz-Date"] = "two"
    assert environ_of(headers)["HTTP_X_AMZ_DATE"] == "one,two"


def environ_of(headers: HTTPMessage) -> dict[str, Any]:
    """What the lab's HTTP server makes of a request's headers."""
    handler = web.Handler.__new__(web.Handler)
    handler.headers, handler.path, handler.command = headers, "/", "POST"
    handler.request_version, handler.client_address = "HTTP/1.1", ("127.0.0.1", 1)
    handler.server = SimpleNamespace(
        ssl_context=None, multithread=True, multiprocess=False, server_address=("127.0.0.1", 1)
    )
    handler.rfile, handler.connection = io.BytesIO(), None
    return handler.make_environ()
