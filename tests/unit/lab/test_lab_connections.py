"""The lab's API keeps a client's connection as AWS does, and no longer than it may."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from werkzeug.serving import make_server

from lab.api import web


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Answers with what was sent; on /fails, not at all."""
    if environ["PATH_INFO"] == "/fails":
        raise RuntimeError("a fault of the lab")
    start_response("200 OK", [])
    length = environ.get("CONTENT_LENGTH")
    return [b"sent: ", environ["wsgi.input"].read(int(length) if length else -1)]


@pytest.fixture
def server() -> Iterator[Any]:
    served = make_server("127.0.0.1", 0, application, threaded=True, request_handler=web.Handler)
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.fixture
def connection(server: Any) -> Iterator[http.client.HTTPConnection]:
    opened = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    opened.connect()
    yield opened
    opened.close()


def answer(connection: http.client.HTTPConnection, path: str = "/", body: Any = b"x") -> Any:
    connection.request("POST", path, body=body)
    response = connection.getresponse()
    return response.status, response.read()


def test_a_second_call_takes_the_same_connection(connection: http.client.HTTPConnection) -> None:
    first = connection.sock
    assert answer(connection, body=b"one") == (200, b"sent: one")
    assert answer(connection, body=b"two") == (200, b"sent: two")
    assert connection.sock is first


def test_a_client_that_asks_first_may_send_its_body_at_once(
    connection: http.client.HTTPConnection,
) -> None:
    """boto3 asks so before each S3 upload, and waits a second for an answer."""
    connection.putrequest("PUT", "/")
    connection.putheader("Expect", "100-continue")
    connection.putheader("Content-Length", "3")
    connection.endheaders()
    assert connection.sock.recv(1 << 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.send(b"x" * 3)
    response = connection.getresponse()
    assert (response.status, len(response.read())) == (200, len(b"sent: ") + 3)
