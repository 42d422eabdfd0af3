"""The instance metadata service, version 1 and 2, as a guest sees it at 169.254.169.254.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html
"""

from __future__ import annotations

import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lab.base.quick_server import QuickServer

_MAX_TTL = 21600
_MOST_TOKENS = 1000
_DEFAULT_TTL = 64  # of IP packets
_VERSIONS = ("latest", "2021-03-23", "2020-10-27", "2018-09-24", "2016-09-02", "2009-04-04")


@dataclass(frozen=True)
class Metadata:
    """The metadata of an instance.

    `data` is the tree below meta-data, `identity` that below dynamic/instance-identity. A dict is a
    folder.
    """

    data: dict[str, Any]
    user_data: bytes | None
    identity: dict[str, Any]
    tokens_required: bool
    enabled: bool
    hop_limit: int  # of the answer with a token


Lookup = Callable[[str], Metadata | None]


def serve(address: str, port: int, lookup: Lookup) -> ThreadingHTTPServer:
    """Serve on `address`:`port`. `lookup` returns the metadata of the instance at an address."""
    tokens: dict[str, dict[str, float]] = {}  # of each address, with their end

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "EC2ws"
        sys_version = ""

        def do_PUT(self) -> None:
            metadata = lookup(self.client_address[0])
            ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if metadata is None or not metadata.enabled:
                self._answer(403, b"")
            elif self.path.rstrip("/") != "/latest/api/token":
                self._answer(404, b"")
            elif self.headers.get("X-Forwarded-For"):
                self._answer(403, b"")
            elif not re.fullmatch(r"[0-9]{1,5}", ttl) or not 1 <= int(ttl) <= _MAX_TTL:
                self._answer(400, b"")
            else:
                token = secrets.token_urlsafe(40)
                _keep(tokens.setdefault(self.client_address[0], {}), token, int(ttl))
                self._set_hop_limit(metadata.hop_limit)
                self._answer(200, token.encode(), {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": ttl})

        def do_GET(self) -> None:
            self._set_hop_limit(_DEFAULT_TTL)
            metadata = lookup(self.client_address[0])
            if metadata is None or not metadata.enabled:
                self._answer(403, b"")
                return
            token = self.headers.get("X-aws-ec2-metadata-token")
            known = tokens.get(self.client_address[0], {})
            valid = known.get(token or "", 0) > time.monotonic()
            if (token and not valid) or (not token and metadata.tokens_required):
                self._answer(401, b"")
                return
            content = resolve(metadata, self.path)
            self._answer(404 if content is None else 200, content or b"")

        def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def _set_hop_limit(self, limit: int) -> None:
            """Set the number of hops that later packets may go: a container's network is the
            second.

            https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
            """
            self.wfile.flush()
            self.connection.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, limit)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing: requests contain tokens."""

    server = QuickServer((address, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _keep(known: dict[str, float], token: str, ttl: int) -> None:
    """Remember a guest's token, and _MOST_TOKENS at most: a guest may ask for any number."""
    now = time.monotonic()
    for other, end in list(known.items()):
        if end <= now or len(known) >= _MOST_TOKENS:
            known.pop(other, None)
    known[token] = now + ttl


def resolve(metadata: Metadata, path: str) -> bytes | None:
    """The content at a path such as /latest/meta-data/instance-id; None where EC2 answers 404."""
    parts = [part for part in path.split("?", maxsplit=1)[0].split("/") if part]
    if not parts:
        return "\n".join(_VERSIONS).encode()
    if parts[0] not in _VERSIONS:
        return None
    rest = parts[1:]
    if rest == ["user-data"]:
        return metadata.user_data
    tree: dict[str, Any] = {
        "dynamic": {"instance-identity": metadata.identity},
        "meta-data": metadata.data,
    }
    if metadata.user_data and not rest:
        tree["user-data"] = ""
    return _walk(tree, rest)


def _walk(tree: dict[str, Any], parts: list[str]) -> bytes | None:
    node: Any = tree
    for part in parts:
        if not isinstance(node, dict) or part not in node:
            # public-keys lists `0=name` but is entered as `0`.
            named = [k for k in node if k.split("=")[0] == part] if isinstance(node, dict) else []
            if not named:
                return None
            part = named[0]  # noqa: PLW2901
        node = node[part]
    if isinstance(node, dict):
        return "\n".join(
            name if not isinstance(child, dict) or "=" in name else f"{name}/"
            for name, child in node.items()
        ).encode()
    return str(node).encode()
