"""How the lab's API reads HTTP: werkzeug's server, as moto runs it, with two additions."""

from __future__ import annotations

from urllib.parse import urlsplit

from moto.moto_server.werkzeug_app import MotoRequestHandler


class Handler(MotoRequestHandler):  # type: ignore[misc]
    """Answers 400 to a request line that werkzeug fails on, and ends silent connections."""

    # Seconds without a byte from the client, who need not have a key to open a connection.
    timeout = 60
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
