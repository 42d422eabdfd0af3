"""HTTP and HTTPS on the lab's address: for the vendors' hosts, and for AWS's endpoints."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from lab.base.quick_server import QuickServer
from lab.machine import endpoints

Find = Callable[[str], "Path | None"]

_TYPES = {".json": "application/json", ".xml": "text/xml", ".gz": "application/gzip"}
_CHUNK = 1 << 20


class Mirror:
    """A running mirror. `close()` stops it."""

    def __init__(self, servers: list[_Server]) -> None:
        self._servers = servers
        for server in servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()

    @property
    def ports(self) -> list[int]:
        """The ports it listens on, HTTPS first."""
        return [int(server.server_address[1]) for server in self._servers]

    def close(self) -> None:
        """Stop listening and end the requests in progress."""
        for server in self._servers:
            server.shutdown()
            server.server_close()


@dataclass(frozen=True)
class Api:
    """Destination of requests for AWS's endpoints: a port of this machine. `takes(host)` says which
    hosts are such; one that is a vendor's too takes signed requests only."""

    port: int
    takes: Callable[[str], bool]
    vendors: frozenset[str]


def start(
    address: str,
    https_port: int,
    http_port: int,
    context: ssl.SSLContext,
    find: Find,
    log: Path,
    api: Api | None = None,
) -> Mirror:
    """Listen on both ports. `find` returns the file for a URL, or None for 404.

    Raises OSError when a port is taken or the address is not this machine's.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    secure = _Server((address, https_port), find, log, context, api)
    try:
        plain = _Server((address, http_port), find, log, None, api)
    except OSError:
        secure.server_close()
        raise
    return Mirror([secure, plain])


class _Server(QuickServer):
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        find: Find,
        log: Path,
        context: ssl.SSLContext | None,
        api: Api | None,
    ) -> None:
        super().__init__(address, _Handler)
        self.find, self.log, self.context, self.api = find, log, context, api


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "kiln-lab-mirror"
    timeout = 60
    server: _Server

    def setup(self) -> None:
        # The handshake runs in the connection's thread: a slow client must not block others.
        if self.server.context:
            self.request.settimeout(10)
            self.request = self.server.context.wrap_socket(self.request, server_side=True)
        super().setup()

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 -- as in http.server

    def _answer(self) -> None:
        host = (self.headers.get("Host") or "").split(":")[0].lower()
        api = self.server.api
        if api and api.takes(host) and (host not in api.vendors or endpoints.is_signed(self)):
            endpoints.forward(self, api.port)
            return
        if self.command not in ("GET", "HEAD"):
            self.close_connection = True  # there may be a body
            self._text(HTTPStatus.METHOD_NOT_ALLOWED, "405: AMI Kiln lab mirror\n")
            return
        scheme = "https" if self.server.context else "http"
        path = unquote(urlsplit(self.path).path)
        url = f"{scheme}://{host}{path}"
        if host == self.server.server_address[0]:
            # This machine resolves no vendor's name to the mirror: the path begins with the host.
            url = f"https:/{path}"
        started = time.monotonic()
        try:
            file = self.server.find(url)
        except Exception as failure:
            self._log(url, HTTPStatus.INTERNAL_SERVER_ERROR, 0, started, f"{failure}")
            self._text(HTTPStatus.INTERNAL_SERVER_ERROR, f"AMI Kiln lab mirror: {failure}\n")
            return
        if file is None or not file.is_file():
            self._log(url, HTTPStatus.NOT_FOUND, 0, started)
            self._text(HTTPStatus.NOT_FOUND, f"404 Not Found: {url} (AMI Kiln lab mirror)\n")
            return
        status = file.stat()
        size = status.st_size
        # A repository's folder is named after its content; within it names, sizes and times repeat.
        place = hashlib.sha256(f"{file} {status.st_mtime_ns}".encode()).hexdigest()[:16]
        tag = f'"{place}-{size}"'
        if self.headers.get("If-None-Match") == tag:
            self._log(url, HTTPStatus.NOT_MODIFIED, 0, started)
            self._head(HTTPStatus.NOT_MODIFIED, 0, "", tag)
            return
        self._log(url, HTTPStatus.OK, size, started)
        self._head(HTTPStatus.OK, size, _TYPES.get(file.suffix, "application/octet-stream"), tag)
        if self.command != "HEAD":
            with file.open("rb") as content:
                while chunk := content.read(_CHUNK):
                    self.wfile.write(chunk)

    def _head(self, status: HTTPStatus, size: int, kind: str, tag: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        if kind:
            self.send_header("Content-Type", kind)
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()

    def _text(self, status: HTTPStatus, text: str) -> None:
        content = text.encode()
        self._head(status, len(content), "text/plain")
        if self.command != "HEAD":
            self.wfile.write(content)

    def _log(
        self, url: str, status: HTTPStatus, size: int, started: float, error: str = ""
    ) -> None:
        seconds = time.monotonic() - started
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        origin = f"{stamp} {self.client_address[0]}"
        # `%0a` must not forge a line.
        shown = quote(url, safe=":/+~@=,")
        line = f"{origin} {self.command} {shown} {int(status)} {size} {seconds:.2f}s"
        with contextlib.suppress(OSError), self.server.log.open("a") as log:
            log.write(f"{line} {error}".rstrip() + "\n")

    def log_message(self, *_: object) -> None:
        """Log nothing here: `_log` writes the mirror's own log."""
