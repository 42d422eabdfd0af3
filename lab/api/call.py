"""A request to the lab's API, read once."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

from lab.api.session_token import HEADER

_SCOPE = re.compile(r"Credential=[^/]+/[0-9]+/([^/]+)/([^/]+)/")
# Services with XML and no Action in the body.
_REST_XML = ("cloudfront", "route53")


class Call:
    """A request: its action, and its caller. The body is read when something first needs it: nobody
    needs that of a caller without a token."""

    def __init__(self, environ: dict[str, Any]) -> None:
        self.environ = environ
        self.path = str(environ.get("PATH_INFO", ""))
        # Calls of services that speak JSON: AmazonSSM.SendCommand.
        self.target = str(environ.get("HTTP_X_AMZ_TARGET", ""))
        found = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
        self.region, self.service = (found[1], found[2]) if found else ("us-east-1", "")
        self.query = dict(parse_qsl(str(environ.get("QUERY_STRING", ""))))

    @property
    def token(self) -> str:
        """The session token of a request, or of a presigned URL; "" for none."""
        presigned = {name.lower(): value for name, value in self.query.items()}
        sent = self.environ.get("HTTP_X_AMZ_SECURITY_TOKEN")
        return str(sent or presigned.get(HEADER.lower(), ""))

    @cached_property
    def body(self) -> bytes:
        """The whole body, which moto can read again from its beginning."""
        stream = self.environ["wsgi.input"]
        if self.environ.get("wsgi.input_terminated"):  # sent in chunks, without a length
            body = bytes(stream.read())
        else:
            body = bytes(stream.read(int(self.environ.get("CONTENT_LENGTH") or 0)))
        self.environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return body

    @cached_property
    def form(self) -> Mapping[str, str]:
        """The parameters of a call of a service that takes forms; {} for another."""
        if self.target or b"Action=" not in self.body:
            return {}
        return dict(parse_qsl(self.body.decode("utf-8", "replace")))

    @property
    def action(self) -> str:
        """The name of the call: RunInstances. That of S3 is method and path."""
        named = self.target.rpartition(".")[2] or self.form.get("Action")
        named = named or self.query.get("Action")
        return named or f"{self.environ['REQUEST_METHOD']} {self.path}"

    @property
    def family(self) -> str:
        """The protocol of the service asked; a form for no service is taken as EC2's."""
        kind = str(self.environ.get("CONTENT_TYPE", ""))
        query = kind.startswith("application/x-www-form-urlencoded") or "Action" in self.query
        if self.service == "ec2" or (query and not self.service):
            return "ec2"
        if query or self.service in _REST_XML:
            return "query"
        return (
            "s3" if self.service.startswith("s3") or not (self.service or self.target) else "json"
        )
