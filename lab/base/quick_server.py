"""The HTTP server behind IMDS and the vendor mirror."""

from __future__ import annotations

import ssl
import sys
from http.server import ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any


class QuickServer(ThreadingHTTPServer):
    """An HTTP server that does not look up its own name, which can take 20 s to fail, and takes a
    client that goes away, as a guest that is killed does, for no error of its own."""

    daemon_threads = True

    def server_bind(self) -> None:
        """See socketserver.TCPServer."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """See socketserver.BaseServer, which prints a traceback."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError | ssl.SSLError):
            super().handle_error(request, client_address)
