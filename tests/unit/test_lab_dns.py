"""The guests' resolver: which names it never forwards, and how it answers them."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from lab.base.settings import Lab
from lab.machine import dns


def query(name: str) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return b"\x12\x34\x01\x00\x00\x01" + b"\0" * 6 + labels + b"\0\0\1\0\1"


def test_the_name_of_a_query_is_read() -> None:
    assert (
        dns.name_of(dns.parse(query("Developer.Download.nvidia.com")))
        == "developer.download.nvidia.com"
    )


RESPONSE = query("a.b")[:2] + b"\x81" + query("a.b")[3:]


@pytest.mark.parametrize(
    "packet", [b"", b"\0" * 12, query("a.b")[:-3], b"\0" * 12 + b"\xff" * 9, RESPONSE]
)
def test_a_packet_that_is_not_a_query_is_refused(packet: bytes) -> None:
    with pytest.raises(ValueError, match="not a DNS query"):
        dns.parse(packet)


def test_no_such_name_answers_the_question_that_was_asked() -> None:
    answer = dns.no_such_name(dns.parse(query("nowhere.invalid")))
    assert answer[:2] == b"\x12\x34"
    assert answer[2] & 0x80 and answer[3] & 0x0F == 3
    assert answer[12:] == query("nowhere.invalid")[12:]


@pytest.mark.parametrize(
    ("name", "never"),
    [
        ("does-not-exist.example.com", True),
        ("example.invalid", True),
        ("instance-data", True),
        ("developer.download.nvidia.com.ec2.internal", True),
        ("9.1.201.10.in-addr.arpa", True),
        ("developer.download.nvidia.com", False),
        ("example.com.evil.net", False),
    ],
)
def test_reserved_names_are_never_asked_for(name: str, never: bool) -> None:
    assert bool(dns._NEVER.search(name)) is never


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("developer.download.nvidia.com", "10.204.0.1"),
        ("ssm.us-east-1.amazonaws.com", "10.204.0.1"),
        ("ip-10-204-1-2.ec2.internal", "10.204.1.2"),
        ("ip-10-204-1-2.eu-west-1.compute.internal", "10.204.1.2"),
        ("ec2-10-204-1-2.compute-1.amazonaws.com", "10.204.1.2"),
        ("ec2-10-204-1-2.eu-west-1.compute.amazonaws.com", "10.204.1.2"),
        # Another lab's, and one of EC2's.
        ("ip-10-201-1-2.ec2.internal", None),
        ("ec2-3-80-1-2.compute-1.amazonaws.com", None),
        ("deb.debian.org", None),
    ],
)
def test_a_guest_finds_instances_by_ec2s_names_the_vendors_hosts_and_aws_endpoints(
    name: str, address: str
):
    lab = Lab(index=3, root=Path("/unused"))
    known = dns.addresses(
        lab, ["developer.download.nvidia.com"], "ssm.us-east-1.amazonaws.com".__eq__
    )
    assert known(name) == address


def test_a_name_of_the_labs_has_an_ipv4_address_and_no_other():
    packet = query("ip-10-204-1-2.ec2.internal")
    assert dns.own_answer(dns.parse(packet), "10.204.1.2").endswith(bytes([10, 204, 1, 2]))
    ipv6 = dns.own_answer(dns.parse(packet[:-3] + b"\x1c" + packet[-2:]), "10.204.1.2")
    assert ipv6[6:8] == b"\0\0"


def test_guests_questions_make_the_lab_keep_and_start_no_more_than_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dns, "_MOST_CACHED", 3)
    monkeypatch.setattr(dns, "_MOST_AT_ONCE", 2)
    monkeypatch.setattr(dns, "_ask", lambda query: b"an answer")
    answering = threading.Event()
    served: list[bytes] = []

    class Waiting(dns.Resolver):
        def _answer(self, packet: bytes, client: tuple[str, int]) -> None:
            served.append(packet)
            answering.wait(60)

    monkeypatch.setattr(dns, "_PORT", 0)
    resolver = Waiting("127.0.0.1", lambda name: None)
    try:
        for number in range(10):
            packet = query(f"a{number}.com")
            assert resolver._forward(packet, dns.parse(packet)) == b"\x12\x34 answer"
            assert len(resolver._cache) <= 3
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as guest:
            for number in range(50):
                guest.sendto(query(f"b{number}.com"), resolver._socket.getsockname())
            guest.sendto(b"the last", resolver._socket.getsockname())
        while len(served) < 2:
            time.sleep(0.01)
        assert not resolver._slots.acquire(blocking=False)
        assert len(served) == 2
    finally:
        answering.set()
        resolver.close()
