"""IMDS of the lab, with clients that do not behave."""

from __future__ import annotations

import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.api import imds

# More than a socket takes before its client has read of it.
LARGE = b"x" * 20_000_000


class Broken:
    def __str__(self) -> str:
        raise ValueError("a mistake of ours")


# An instance with large user data, and a file that cannot be read.
MACHINE = imds.Metadata({"made": Broken()}, LARGE, {}, False, True, 1)


@contextmanager
def served(metadata: imds.Metadata) -> Iterator[tuple[str, int]]:
    server = imds.serve("127.0.0.1", 0, lambda address: metadata)
    try:
        yield "127.0.0.1", server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def wait_for_handlers() -> None:
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(120)


def test_a_guest_that_is_killed_while_it_asks_is_not_an_error_of_the_lab(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with served(MACHINE) as place:
        with socket.create_connection(place) as guest:
            guest.sendall(b"GET /latest/user-data HTTP/1.0\r\n\r\n")
            assert guest.recv(100)
            guest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for_handlers()
    assert capfd.readouterr().err == ""


def test_an_error_of_the_lab_itself_is_in_its_log(capfd: pytest.CaptureFixture[str]) -> None:
    with served(MACHINE) as (host, port):
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(f"http://{host}:{port}/latest/meta-data/made", timeout=120)
        wait_for_handlers()
    assert "ValueError: a mistake of ours" in capfd.readouterr().err


def test_a_guest_makes_the_lab_keep_no_more_than_a_thousand_tokens() -> None:
    known: dict[str, float] = {}
    for number in range(1200):
        imds._keep(known, f"token-{number}", 60)
    assert len(known) == 1000
    assert "token-1199" in known and "token-0" not in known
