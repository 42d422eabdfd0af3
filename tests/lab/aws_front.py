"""AWS's host names, served by a lab: an HTTPS proxy for programs that use the real ones.

It ends TLS with a certificate of the lab's CA and hands what it hears on to the lab's API, so boto3
and Packer talk to `ec2.us-east-1.amazonaws.com` as they would in an account. Vendors' hosts are the
lab's mirror.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from urllib.parse import parse_qsl

from lab.base.settings import Lab
from lab.machine import endpoints
from lab.vendors.mirror import ca, vendor_hosts

CHECK_IP = "checkip.amazonaws.com"


Calls = list[dict[str, str]]


@contextlib.contextmanager
def serve(lab: Lab, calls: Calls) -> Iterator[dict[str, str]]:
    """Serve until the block ends; yields the environment that directs a program to the proxy.

    `calls` gets the parameters of each call of a query API as it was sent, and of each question for
    this machine's address an entry without any.
    """
    context = ca.server_context([*endpoints.certified(), CHECK_IP], lab.shared)
    with _Proxy(lab, context, calls) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        authority = str(ca.ensure(lab.shared).certificate)
        yield {
            "HTTPS_PROXY": f"http://127.0.0.1:{proxy.server_address[1]}",
            "AWS_CA_BUNDLE": authority,  # botocore
            "SSL_CERT_FILE": authority,  # Go and urllib
            "REQUESTS_CA_BUNDLE": authority,  # `preflight`
        }
        proxy.shutdown()


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, lab: Lab, context: ssl.SSLContext, calls: Calls) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.lab, self.context, self.calls = lab, context, calls


class _Tunnel(socketserver.StreamRequestHandler):
    server: _Proxy

    def handle(self) -> None:
        asked = self.rfile.readline().split()
        while self.rfile.readline().strip():
            pass
        host = asked[1].decode().rpartition(":")[0]
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        if host in vendor_hosts():
            with socket.create_connection((self.server.lab.gateway, 443)) as mirror:
                threading.Thread(target=_copy, args=(mirror, self.request), daemon=True).start()
                _copy(self.request, mirror)
            return
        # Ignore clients that disconnect in the middle of a request.
        with (
            contextlib.suppress(OSError),
            self.server.context.wrap_socket(self.request, server_side=True) as secure,
        ):
            self._answer(host, secure)

    def _answer(self, host: str, secure: ssl.SSLSocket) -> None:
        if host == CHECK_IP:
            self.server.calls.append({})
            seen = self.server.lab.gateway.encode() + b"\n"  # as the guests see this machine
            secure.recv(65536)
            secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(seen), seen))
            return
        with socket.create_connection(("127.0.0.1", self.server.lab.port)) as api:
            back = threading.Thread(target=_copy, args=(api, secure), daemon=True)
            back.start()
            sent = bytearray()
            _copy(secure, api, sent.extend)
            back.join()
            self.server.calls.extend(_requests(bytes(sent)))


def _requests(sent: bytes) -> Calls:
    """The parameters of the requests of one connection."""
    calls = []
    while sent:
        head, _, rest = sent.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if b"upgrade" in fields:  # what follows is no HTTP
            break
        size = int(fields.get(b"content-length", 0))
        body, sent = rest[:size], rest[size:]
        if b"Action=" in body:
            calls.append(dict(parse_qsl(body.decode())))
    return calls


def _copy(
    source: socket.socket,
    target: socket.socket,
    seen: Callable[[bytes], object] = lambda data: None,
) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            seen(data)
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
