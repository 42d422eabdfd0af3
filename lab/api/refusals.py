"""Errors in the form of AWS's services, for requests that the lab does not accept."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from lab.api import wsgi


@dataclass(frozen=True)
class Answer:
    """An HTTP answer: status such as `403 Forbidden`, headers, body."""

    status: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


# Error codes by service family. Sources, all below docs.aws.amazon.com:
# AWSEC2/latest/APIReference/errors-overview.html, AmazonS3/latest/API/ErrorResponses.html,
# STS/latest/APIReference/CommonErrors.html, systems-manager/latest/APIReference/CommonErrors.html
_UNKNOWN_TOKEN = {
    "ec2": "AuthFailure",
    "s3": "AccessDenied",
    "query": "InvalidClientTokenId",
    "json": "UnrecognizedClientException",
}
# Services with XML and no Action in the body.
_REST_XML = ("cloudfront", "route53")


def unknown_token(environ: Mapping[str, Any]) -> Answer:
    """The answer to a request without a token of the lab, in the form of the service asked."""
    family = _family(environ)
    text = "AMI Kiln lab: the request has no session token of this lab; ./invoke lab.up prints it"
    return _error(family, "403 Forbidden", _UNKNOWN_TOKEN[family], text)


def unsupported(call: str, exists: bool, environ: Mapping[str, Any]) -> Answer:
    """The answer of a service to a call that the lab cannot answer.

    `exists` says whether the service has a call of that name. It is never a 5xx: clients would try
    again. Codes: docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html, and the
    services' common errors.
    """
    text = f"The action {call} is not valid for this web service"
    if exists:
        text = f"AMI Kiln lab: {call} is not implemented, or not with these parameters"
    code = {
        "ec2": "UnsupportedOperation" if exists else "InvalidAction",
        "query": "InvalidAction",
        "s3": "NotImplemented",
        "json": "UnknownOperationException",
    }
    family = _family(environ)
    return _error(family, "400 Bad Request", code[family], text)


def of_ec2(line: str, code: str, text: str) -> Answer:
    """An error of EC2."""
    return _error("ec2", line, code, text)


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


def _family(environ: Mapping[str, Any]) -> str:
    """The protocol of the service asked; a form for no service is taken as EC2's."""
    _, service = wsgi.scope(environ)
    form = str(environ.get("CONTENT_TYPE", "")).startswith("application/x-www-form-urlencoded")
    query = form or "Action=" in str(environ.get("QUERY_STRING", ""))
    if service == "ec2" or (query and not service):
        return "ec2"
    if query or service in _REST_XML:
        return "query"
    if service.startswith("s3") or (not service and "HTTP_X_AMZ_TARGET" not in environ):
        return "s3"
    return "json"
