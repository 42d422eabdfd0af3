"""The site on this machine, with the headers that a server should send."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kiln.base.errors import operation_failed
from kiln.catalogue.pages import POLICY

# `frame-ancestors` is not for a page itself to say.
HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class SiteHandler(SimpleHTTPRequestHandler):
    """Files of one folder, with `HEADERS`; says nothing on the terminal."""

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        return


def site_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server for the folder on the loopback interface; port 0 takes a free one.

    Raises KilnError (exit status 1) for a port that is taken.
    """
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(SiteHandler, directory=str(folder)))
    except OSError as error:
        raise operation_failed(
            f"port {port} cannot be served: {error.strerror}", hint="choose another: --port 8001"
        ) from None


def serve_site(folder: Path, port: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C."""
    with site_server(folder, port) as server:
        say(f"http://127.0.0.1:{server.server_address[1]}/ (Ctrl-C ends it)")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
