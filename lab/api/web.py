"""HTTP of the lab's API: werkzeug's server, as moto runs it, with four additions.

werkzeug ends each connection after its answer, and waits 10 ms before for what the client may still
send: half of the cost of most calls. AWS keeps connections, and so does this.

waitress and cheroot, which keep them too, were weighed: 0.43 and 0.49 ms of processor time for a
call and its client, 0.36 here, 0.70 with werkzeug alone. They are not used because they answer with
a fixed number of threads, and each guest's agent holds a call until there is a command for it: with
32 held of 32 threads, the next call waited until one was over.
"""

from __future__ import annotations

import io
import re
import traceback
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from moto.moto_server.werkzeug_app import MotoRequestHandler

# A longer body is left to werkzeug: who refuses the call need not read it.
_LONGEST_KEPT = 1 << 20
_NOT_SIMPLE = ("Transfer-Encoding", "Upgrade")


class Handler(MotoRequestHandler):  # type: ignore[misc]
    """Keeps connections, answers 400 to a request line that werkzeug fails on, lets a client send
    its body at once, and ends silent connections.
    """

    # Seconds without a byte from the client, who need not have a key to open a connection.
    timeout = 60
    protocol_version = "HTTP/1.1"
    # An answer is one packet, and none waits for the client's acknowledgement of the one before.
    wbufsize = -1
    disable_nagle_algorithm = True
    path: str

    def parse_request(self) -> bool:
        """See http.server. False when the request was answered already."""
        if not super().parse_request():
            return False
        try:
            urlsplit(self.path)
        except ValueError:  # http://[
            self.path = "/"  # werkzeug's log would fail on the other one
            self.send_error(400, "the address is not a URL")
            return False
        return True

    def handle_expect_100(self) -> bool:
        """See http.server. boto3 asks before each S3 upload, and waits a second for the answer."""
        allowed: bool = super().handle_expect_100()
        self.wfile.flush()
        return allowed

    def run_wsgi(self) -> None:
        """Answer a request. The connection stays if its body was read whole and it may."""
        length = self.headers.get("Content-Length", "0")
        simple = re.fullmatch(r"[0-9]{1,7}", length) and int(length) <= _LONGEST_KEPT
        twice = len(self.headers.get_all("Content-Length", [])) > 1
        if not simple or twice or any(name in self.headers for name in _NOT_SIMPLE):
            super().run_wsgi()
            return
        if getattr(self.server, "ended", False):
            self.close_connection = True
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):  # the client is gone
            self.close_connection = True
            return
        self.environ = environ = self.make_environ()
        environ["wsgi.input"] = io.BytesIO(body)
        self._send(*self._answer(environ))

    def _answer(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        """Status, headers and body of the application's answer."""
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], *_: object) -> None:
            started.append((status, headers))

        try:
            parts = self.server.app(environ, start_response)
            try:
                body = b"".join(parts)
            finally:
                if hasattr(parts, "close"):
                    parts.close()
            return (*started[-1], body)
        except ConnectionError:
            raise
        except Exception:
            self.server.log("error", f"Error on request:\n{traceback.format_exc()}")
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            return f"{status} {status.phrase}", [], b""

    def _send(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        code, _, reason = status.partition(" ")
        self.send_response(int(code), reason)
        for name, value in headers:
            self.send_header(name, value)
        bodiless = self.command == "HEAD" or code in ("204", "304")
        if not bodiless and not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not bodiless:
            self.wfile.write(body)
        self.wfile.flush()

    def log_request(self, *_: object) -> None:
        """Nothing: the lab's log has what is refused and what fails."""

    def log_error(self, format: str, *words: Any) -> None:  # noqa: A002 - as in http.server
        """Nothing of a kept connection that was not used again."""
        if not format.startswith("Request timed out"):
            super().log_error(format, *words)


def end(server: Any) -> None:
    """Take no further connection, and no further request of those that are kept."""
    server.ended = True
    server.shutdown()
