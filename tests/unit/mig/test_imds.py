"""What a launch says about MIG, asked of an IMDS that answers as servers may."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from kiln.base.paths import runtime_module

errors = runtime_module("gpu_mig.errors")
imds = runtime_module("gpu_mig.imds")
TAG = "all-1g.5gb"


def reply(body: str) -> str:
    return f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}"


WHOLE = reply(TAG)
NOT_FOUND = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
BUSY = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
MIME = """MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="//"

--//
Content-Type: text/cloud-config

#kiln:mig-config: all-2g.10gb
--//--
"""


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """Tries that are repeated without a pause."""
    monkeypatch.setattr(imds, "PAUSE", 0.01)


@pytest.fixture
def serve(monkeypatch) -> Iterator[Callable[..., list[str]]]:
    """Answers each request with `answer`, in two parts; `keep`: never hangs up.

    `late`: answers of the first requests, "" for none at all.
    """
    with contextlib.ExitStack() as stack:

        def start(
            answer: str, keep: bool = False, address: str = "127.0.0.1", late: tuple[str, ...] = ()
        ) -> list[str]:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            server = stack.enter_context(socket.create_server((address, 0), family=family))
            host = f"[{address}]" if ":" in address else address
            endpoint = f"http://{host}:{server.getsockname()[1]}/"
            monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
            asked: list[str] = []

            def work() -> None:
                while True:
                    try:
                        link, _ = server.accept()
                    except OSError:
                        return
                    stack.callback(link.close)
                    asked.append(link.recv(65536).decode())
                    said = late[len(asked) - 1] if len(asked) <= len(late) else answer
                    half = len(said) // 2
                    link.sendall(said[:half].encode())
                    link.sendall(said[half:].encode())
                    if not keep and (said or not late):
                        link.close()

            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            stack.callback(thread.join, 60)
            # Or it would wait on the next socket that gets the number: another test's.
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            return asked

        yield start


def test_the_tag_is_asked_for_with_a_token_first(serve):
    asked = serve(WHOLE)
    assert imds.launch_label() == (TAG, "instance tag kiln:mig-config")
    token, tag = (request.split("\r\n") for request in asked)
    assert token[0] == "PUT /latest/api/token HTTP/1.1"
    assert "X-aws-ec2-metadata-token-ttl-seconds: 60" in token
    assert tag[0] == "GET /latest/meta-data/tags/instance/kiln:mig-config HTTP/1.1"
    assert f"X-aws-ec2-metadata-token: {TAG}" in tag


@pytest.mark.parametrize(
    "answer",
    [
        WHOLE,
        f"HTTP/1.0 200 OK\r\n\r\n{TAG}",
        f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{TAG[:4]}\r\n"
        f"{len(TAG) - 4:x};x=1\r\n{TAG[4:]}\r\n0\r\n\r\n",
    ],
    ids=["length", "until it hangs up", "chunks"],
)
def test_an_answer_is_read_however_it_is_framed(serve, answer):
    serve(answer)
    assert imds.launch_label()[0] == TAG


def test_an_ipv6_endpoint_is_asked(serve):
    try:
        serve(WHOLE, keep=True, address="::1")  # whose end is not waited for
    except OSError:
        pytest.skip("no IPv6 on this machine")
    assert imds.launch_label()[0] == TAG


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "refused a token (HTTP 403)"),
        ("SSH-2.0-OpenSSH_9.2\r\n", "did not answer: SSH-2.0"),
        ("", "did not answer: Remote end closed"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "did not answer"),
    ],
)
def test_an_invalid_answer_is_a_reason_and_not_a_traceback(serve, answer, why):
    serve(answer)
    label, output = imds.launch_label()
    assert label == ""
    assert why in output


@pytest.mark.parametrize("endpoint", ["http://[::1", "ftp://x"])
def test_an_endpoint_that_is_none_is_named(monkeypatch, endpoint):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
    label, output = imds.launch_label()
    assert (label, "IMDS did not answer" in output) == ("", True)


def test_late_imds_is_asked_again(serve, monkeypatch):
    monkeypatch.setattr(imds, "TRY", 0.2)
    serve(WHOLE, late=(BUSY, "", BUSY))
    assert imds.launch_label() == (TAG, "instance tag kiln:mig-config")


@pytest.mark.parametrize(
    ("answer", "why"), [(BUSY, "HTTP 503"), ("", "timed out")], ids=["503", "silent"]
)
def test_no_answer_to_the_end_fails_the_unit(serve, monkeypatch, answer, why):
    monkeypatch.setattr(imds, "BUDGET", 0.3)
    monkeypatch.setattr(imds, "TRY", 0.1)
    serve(answer, keep=True)
    with pytest.raises(errors.MigError, match=why) as raised:
        imds.launch_label()
    assert raised.value.exit_code == errors.OPERATION_FAILED


LINE = b"#!/bin/sh\n# kiln:mig-config=all-1g.5gb\n"
# The time in gzip's header would give each process that tests another input.
PACKED = gzip.compress(LINE, mtime=0)
PACKED_BODIES = {
    "whole": (PACKED, TAG),
    "two members": (gzip.compress(b"#!/bin/sh\n", mtime=0) + PACKED, ""),
    "cut in its beginning": (PACKED[:12], ""),
    "too large": (gzip.compress(LINE + bytes(imds.MAX_BYTES), mtime=0), ""),
    # As many as an answer of IMDS holds: it is read up to 64 KiB.
    "many members": (PACKED * 900, ""),
}


@pytest.mark.parametrize(("body", "label"), PACKED_BODIES.values(), ids=PACKED_BODIES.keys())
def test_packed_user_data_is_read_where_it_is_whole(body, label, monkeypatch):
    assert imds.from_user_data(body) == label
    answers = [(200, b"token"), (404, b""), (200, body)]
    monkeypatch.setattr(imds, "_request", lambda *_: answers.pop(0))
    assert imds.launch_label()[0] == label
    if not label:
        answers = [(200, b"token"), (404, b""), (200, body)]
        assert "user-data is not one gzip member of at most 1048576 bytes" in imds.launch_label()[1]


@pytest.mark.parametrize(
    ("answers", "label", "source"),
    [
        ((NOT_FOUND, reply(MIME)), "all-2g.10gb", "user-data"),
        ((WHOLE,), TAG, "instance tag kiln:mig-config"),
    ],
    ids=["user data", "tag"],
)
def test_launch_overrides_the_image(p4d, serve, answers, label, source):
    p4d.settings(MIG_CONFIG="all-balanced", MIG_IMDS="yes")
    serve("", late=(WHOLE, *answers))
    answer = p4d.json("apply")
    assert (answer["label"], answer["source"]) == (label, source)


def test_launch_can_switch_slicing_off(p4d, serve):
    p4d.settings(MIG_CONFIG="all-balanced", MIG_IMDS="yes")
    serve("", late=(WHOLE, reply("none")))
    assert "no MIG layout is selected" in p4d.json("apply", "--boot")["nothing"]


def test_failing_imds_closes_the_gate(p4d, serve, monkeypatch):
    cli = runtime_module("gpu_mig.cli")
    monkeypatch.setattr(imds, "BUDGET", 0.1)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    serve(BUSY)
    p4d.settings(MIG_CONFIG="all-balanced", MIG_IMDS="yes")
    for name, value in p4d.env().items():
        monkeypatch.setenv(name, value)
    assert cli.main(["apply", "--boot"]) == 1
    assert "HTTP 503" in p4d.gate()
