"""How AWS's services say that they do not accept a request."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from lab.access.auth import Kind, RefusedError


@dataclass(frozen=True)
class Answer:
    """An HTTP answer: status such as `403 Forbidden`, headers, body."""

    status: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


_CREDENTIALS = "AWS was not able to validate the provided access credentials"
_TOKEN = "The security token included in the request is invalid"  # noqa: S105 - a message
_MISSING = "Request is missing Authentication Token"
_SIGNATURE = (
    "The request signature we calculated does not match the signature you provided. Check your AWS "
    "Secret Access Key and signing method"
)
_LATE = "Signature expired"
_EXPIRED = "The security token included in the request is expired"
_Codes = Mapping[Kind, tuple[int, str, str]]

# HTTP status, error code and message by service family. Sources, all below docs.aws.amazon.com:
# AWSEC2/latest/APIReference/errors-overview.html, AmazonS3/latest/API/ErrorResponses.html,
# STS/latest/APIReference/CommonErrors.html, systems-manager/latest/APIReference/CommonErrors.html
_EC2: _Codes = {
    "unsigned": (401, "AuthFailure", _CREDENTIALS),
    "unknown": (401, "AuthFailure", _CREDENTIALS),
    "wrong": (401, "AuthFailure", _CREDENTIALS),
    "unsigned_part": (401, "AuthFailure", _CREDENTIALS),
    "late": (400, "RequestExpired", "Request has expired"),
    "expired": (400, "RequestExpired", "Request has expired"),
}
_S3: _Codes = {
    "unsigned": (403, "AccessDenied", "Access Denied"),
    "unknown": (
        403,
        "InvalidAccessKeyId",
        "The AWS Access Key Id you provided does not exist in our records",
    ),
    "wrong": (403, "SignatureDoesNotMatch", _SIGNATURE),
    "unsigned_part": (
        403,
        "AccessDenied",
        "There were headers present in the request which were not signed",
    ),
    "late": (
        403,
        "RequestTimeTooSkewed",
        "The difference between the request time and the current time is too large",
    ),
    "expired": (400, "ExpiredToken", "The provided token has expired"),
}
_QUERY: _Codes = {
    "unsigned": (403, "MissingAuthenticationToken", _MISSING),
    "unknown": (403, "InvalidClientTokenId", _TOKEN),
    "wrong": (403, "SignatureDoesNotMatch", _SIGNATURE),
    "unsigned_part": (403, "SignatureDoesNotMatch", _SIGNATURE),
    "late": (403, "SignatureDoesNotMatch", _LATE),
    "expired": (403, "ExpiredToken", _EXPIRED),
}
_JSON: _Codes = {
    "unsigned": (400, "MissingAuthenticationTokenException", _MISSING),
    "unknown": (400, "UnrecognizedClientException", _TOKEN),
    "wrong": (400, "InvalidSignatureException", _SIGNATURE),
    "unsigned_part": (400, "InvalidSignatureException", _SIGNATURE),
    "late": (400, "InvalidSignatureException", _LATE),
    "expired": (400, "ExpiredTokenException", _EXPIRED),
}
# Services with XML and no Action in the body.
_REST_XML = ("cloudfront", "route53")
_REASONS = {400: "Bad Request", 401: "Unauthorized", 403: "Forbidden"}
_FORM = "application/x-www-form-urlencoded"


def answer(refused: RefusedError, environ: Mapping[str, Any], body: bytes) -> Answer:
    """The answer of the service that a request was meant for.

    `body` is its first part, in which a request without a signature names its API version.
    """
    if str(environ.get("PATH_INFO", "")).startswith("/_lab/"):
        text = f"{refused.message}: sign it with the keys that ./invoke lab.up prints"
        return _answer("403 Forbidden", "application/json", json.dumps({"error": text}).encode())
    family = _family(refused.service, environ, body)
    codes = {"ec2": _EC2, "s3": _S3, "query": _QUERY, "json": _JSON}[family]
    status, code, message = codes[refused.kind]
    text = f"{message} (AMI Kiln lab: {refused.message}; ./invoke lab.up prints its keys)"
    return _error(family, f"{status} {_REASONS[status]}", code, text)


def unsupported(
    service: str, call: str, exists: bool, environ: Mapping[str, Any], body: bytes
) -> Answer:
    """The answer of a service to a call that the lab cannot answer.

    `exists` says whether the service has a call of that name. It is never a 5xx: clients would try
    again. Codes: docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html, and the
    services' common errors.
    """
    family = _family(service, environ, body)
    text = f"The action {call} is not valid for this web service"
    if exists:
        text = f"AMI Kiln lab: {call} is not implemented, or not with these parameters"
    code = {
        "ec2": "UnsupportedOperation" if exists else "InvalidAction",
        "query": "InvalidAction",
        "s3": "NotImplemented",
        "json": "UnknownOperationException",
    }
    return _error(family, "400 Bad Request", code[family], text)


def _error(family: str, line: str, code: str, text: str) -> Answer:
    """An error in the form of a service family."""
    if family == "json":
        content = json.dumps({"__type": code, "message": text}).encode()
        return _answer(line, "application/json", content, ("x-amzn-ErrorType", code))
    request, error = uuid.uuid4(), f"<Code>{code}</Code><Message>{escape(text)}</Message>"
    xml = {
        "ec2": f"<Response><Errors><Error>{error}</Error></Errors>"
        f"<RequestID>{request}</RequestID></Response>",
        "s3": f"<Error>{error}<RequestId>{request}</RequestId></Error>",
        "query": f"<ErrorResponse><Error><Type>Sender</Type>{error}</Error>"
        f"<RequestId>{request}</RequestId></ErrorResponse>",
    }[family]
    return _answer(line, "text/xml", f'<?xml version="1.0" encoding="UTF-8"?>\n{xml}'.encode())


def plain(status: str, text: str) -> Answer:
    """An answer that does not come from a service."""
    return _answer(status, "text/plain", f"{text}\n".encode())


def _answer(status: str, kind: str, body: bytes, *more: tuple[str, str]) -> Answer:
    length = ("Content-Length", str(len(body)))
    return Answer(status, (("Content-Type", f"{kind}; charset=UTF-8"), length, *more), body)


def _family(service: str, environ: Mapping[str, Any], body: bytes) -> str:
    form = str(environ.get("CONTENT_TYPE", "")).startswith(_FORM)
    query = form or "Action=" in str(environ.get("QUERY_STRING", ""))
    parameters = f"{environ.get('QUERY_STRING', '')}&{body.decode('latin-1')}"
    if service == "ec2" or (not service and query and "Version=2016-11-15" in parameters):
        return "ec2"
    if query or service in _REST_XML:
        return "query"
    if service.startswith("s3") or (not service and "HTTP_X_AMZ_TARGET" not in environ):
        return "s3"
    return "json"
