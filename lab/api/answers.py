"""Answers of the lab: JSON, plain text, and errors in the form of AWS's services."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape


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


def unknown_token(family: str) -> Answer:
    """The answer to a request without a token of the lab, in the form of the service asked."""
    text = "AMI Kiln lab: the request has no session token of this lab; ./invoke lab.up prints it"
    return error(family, "403 Forbidden", _UNKNOWN_TOKEN[family], text)


def unsupported(family: str, call: str, *, exists: bool) -> Answer:
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
    return error(family, "400 Bad Request", code[family], text)


def error(family: str, line: str, code: str, text: str) -> Answer:
    """An error in the form of a service family."""
    if family == "json":
        content = json.dumps({"__type": code, "message": text}).encode()
        return _answer(line, "application/json", content, ("x-amzn-ErrorType", code))
    request, inner = uuid.uuid4(), f"<Code>{code}</Code><Message>{escape(text)}</Message>"
    xml = {
        "ec2": f"<Response><Errors><Error>{inner}</Error></Errors>"
        f"<RequestID>{request}</RequestID></Response>",
        "s3": f"<Error>{inner}<RequestId>{request}</RequestId></Error>",
        "query": f"<ErrorResponse><Error><Type>Sender</Type>{inner}</Error>"
        f"<RequestId>{request}</RequestId></ErrorResponse>",
    }[family]
    return _answer(line, "text/xml", f'<?xml version="1.0" encoding="UTF-8"?>\n{xml}'.encode())


def json_answer(content: Any, status: str = "200 OK") -> Answer:
    """An answer of the lab itself, or of a service that speaks JSON."""
    return _answer(status, "application/json", json.dumps(content).encode())


def plain(status: str, text: str) -> Answer:
    """An answer that does not come from a service."""
    return _answer(status, "text/plain", f"{text}\n".encode())


def _answer(status: str, kind: str, body: bytes, *more: tuple[str, str]) -> Answer:
    length = ("Content-Length", str(len(body)))
    return Answer(status, (("Content-Type", f"{kind}; charset=UTF-8"), length, *more), body)
