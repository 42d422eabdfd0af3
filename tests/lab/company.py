"""A company's network in front of a lab: a proxy that guests may use, and a mirror behind it.

The proxy carries what the vendors' hosts serve, and answers for the mirror's host itself, with a
certificate of the lab's CA.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from lab.base.settings import Lab
from lab.vendors.mirror import ca

PORT = 3128
MIRROR = "mirror.example.com"


@dataclass
class Company:
    """The proxy's URL, and the hosts that were asked for through it."""

    proxy: str
    hosts: set[str] = field(default_factory=set)


@contextlib.contextmanager
def serve(lab: Lab, mirrored: dict[str, str]) -> Iterator[Company]:
    """Serve until the block ends. `mirrored`: first part of a path at the mirror → the vendor."""
    company = Company(f"http://{lab.gateway}:{PORT}")
    context = ca.server_context([MIRROR], lab.shared)
    rule = ["nft", "insert", "rule", "ip", lab.table, "input", "iifname", lab.bridge]
    subprocess.run([*rule, "tcp", "dport", str(PORT), "accept"], check=True)
    with _Proxy(lab, company, context, mirrored) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield company
        proxy.shutdown()


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, lab: Lab, company: Company, context: ssl.SSLContext, mirrored: dict[str, str]
    ) -> None:
        super().__init__((lab.gateway, PORT), _Request)
        self.lab, self.company, self.context, self.mirrored = lab, company, context, mirrored


class _Request(socketserver.StreamRequestHandler):
    server: _Proxy

    def handle(self) -> None:
        line = self.rfile.readline()
        if not line.strip():
            return
        method, target, _ = line.decode().split()
        head = _head(self.rfile)
        with contextlib.suppress(OSError):
            if method == "CONNECT":
                self._tunnel(target.rpartition(":")[0])
            else:  # http://host/path
                host, _, path = target.removeprefix("http://").partition("/")
                self.server.company.hosts.add(host)
                with socket.create_connection((self.server.lab.gateway, 80)) as vendor:
                    vendor.sendall(f"{method} /{path} HTTP/1.1\r\n".encode() + _closing(head))
                    _copy(vendor, self.connection)

    def _tunnel(self, host: str) -> None:
        self.server.company.hosts.add(host)
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        if host == MIRROR:
            with self.server.context.wrap_socket(self.connection, server_side=True) as secure:
                self._mirror(secure)
            return
        with socket.create_connection((self.server.lab.gateway, 443)) as vendor:
            back = threading.Thread(target=_copy, args=(vendor, self.connection), daemon=True)
            back.start()
            _copy(self.connection, vendor)
            back.join()

    def _mirror(self, guest: ssl.SSLSocket) -> None:
        """Answer one request of the mirror's from the vendor."""
        reader = guest.makefile("rb")
        method, path, _ = reader.readline().decode().split()
        head = _head(reader)
        _, first, rest = path.split("/", 2)
        vendor = self.server.mirrored[first]
        context = ssl.create_default_context(
            cafile=str(ca.ensure(self.server.lab.shared).certificate)
        )
        with (
            socket.create_connection((self.server.lab.gateway, 443)) as plain,
            context.wrap_socket(plain, server_hostname=vendor) as secure,
        ):
            lines = [field for field in head if not field.lower().startswith(b"host:")]
            asked = [f"Host: {vendor}\r\n".encode(), *lines]
            secure.sendall(f"{method} /{rest} HTTP/1.1\r\n".encode() + _closing(asked))
            _copy(secure, guest)


def _head(reader) -> list[bytes]:
    lines = []
    while (line := reader.readline()).strip():
        lines.append(line)
    return lines


def _closing(head: list[bytes]) -> bytes:
    """A request's head that asks for one answer on its connection."""
    kept = [field for field in head if not field.lower().startswith((b"connection:", b"proxy-"))]
    return b"".join([*kept, b"Connection: close\r\n\r\n"])


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
