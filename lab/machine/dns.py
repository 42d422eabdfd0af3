"""The guests' DNS resolver, as a VPC has one: it knows instances' names and the vendors' hosts.

Other questions go to the host's resolvers, and the answers are cached.

cloud-init asks for names that must not exist before it trusts a resolver (those of RFC 2606, and
`instance-data`, which only EC2-Classic had). With a slow resolver on the host that would delay
every boot by half a minute, so these names are answered at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import dns.exception
import dns.flags
import dns.message
import dns.query
import dns.rcode
import dns.rdatatype
import dns.rrset

from lab.base.settings import Lab

_PORT = 53
_CACHE_SECONDS = 60.0
_TIMEOUT = 20.0
# What a guest can make the lab keep: answers, and questions that wait for one.
_MOST_CACHED = 10_000
_MOST_AT_ONCE = 100
# https://www.rfc-editor.org/rfc/rfc2606 and names without a dot: a VPC resolves none of them.
# Nor does the host's resolver know who has a private address or a name of EC2's.
_NEVER = re.compile(
    r"(^|\.)(invalid|test|example|localhost|internal|10\.in-addr\.arpa)$"
    r"|(^|\.)example\.(com|net|org)$|^[^.]*$"
)
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-naming.html
_INSTANCE = re.compile(
    r"ip-([0-9]+)-([0-9]+)-([0-9]+)-([0-9]+)\.(?:ec2|[a-z0-9-]+\.compute)\.internal"
    r"|ec2-([0-9]+)-([0-9]+)-([0-9]+)-([0-9]+)\.(?:compute-1|[a-z0-9-]+\.compute)\.amazonaws\.com"
)
Addresses = Callable[[str], "str | None"]


def addresses(lab: Lab, hosts: Iterable[str], is_endpoint: Callable[[str], bool]) -> Addresses:
    """The address of each name that the lab answers for: instances', the vendors' `hosts` and AWS's
    endpoints."""
    vendors = frozenset(hosts)

    def address(name: str) -> str | None:
        if name in vendors or is_endpoint(name):
            return lab.gateway
        instance = _INSTANCE.fullmatch(name)
        dotted = ".".join(number for number in instance.groups() if number) if instance else ""
        return dotted if dotted.startswith(f"{lab.prefix}.") else None

    return address


def parse(packet: bytes) -> dns.message.Message:
    """The query in a packet. Raises ValueError when the packet is not a query with a question."""
    try:
        query = dns.message.from_wire(packet)
    except dns.exception.DNSException:
        raise ValueError("not a DNS query") from None
    if query.flags & dns.flags.QR or not query.question:
        raise ValueError("not a DNS query")
    return query


def name_of(query: dns.message.Message) -> str:
    """The name that a query asks for, in lower case and without the last dot."""
    return query.question[0].name.to_text(omit_final_dot=True).lower()


def no_such_name(query: dns.message.Message) -> bytes:
    """The answer NXDOMAIN to a query."""
    answer = dns.message.make_response(query, recursion_available=True)
    answer.set_rcode(dns.rcode.NXDOMAIN)
    return answer.to_wire()


def own_answer(query: dns.message.Message, address: str) -> bytes:
    """The answer to a query for a name of the lab's; it has an IPv4 address and nothing else."""
    answer = dns.message.make_response(query, recursion_available=True)
    question = query.question[0]
    if question.rdtype == dns.rdatatype.A:
        answer.answer.append(dns.rrset.from_text(question.name, 60, "IN", "A", address))
    return answer.to_wire()


def upstream() -> list[str]:
    """The addresses of the host's resolvers; with systemd-resolved those behind its stub.

    KILN_LAB_RESOLVER names others, with spaces between them.
    """
    if chosen := os.environ.get("KILN_LAB_RESOLVER", "").split():
        return chosen
    resolved = Path("/run/systemd/resolve/resolv.conf")
    path = resolved if resolved.exists() else Path("/etc/resolv.conf")
    return re.findall(r"^nameserver\s+(\S+)", path.read_text(), re.MULTILINE)


class Resolver:
    """A resolver on port 53 of one address. `close` stops it."""

    def __init__(self, address: str, addresses: Addresses) -> None:
        self._addresses = addresses
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, _PORT))
        # A query without its id → when its answer expires, and the answer.
        self._cache: dict[bytes, tuple[float, bytes]] = {}
        self._slots = threading.BoundedSemaphore(_MOST_AT_ONCE)
        threading.Thread(target=self._serve, daemon=True, name="dns").start()

    def close(self) -> None:
        """Stop answering."""
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                packet, client = self._socket.recvfrom(4096)
            except OSError:
                return
            # A client that gets no answer asks again.
            if self._slots.acquire(blocking=False):
                threading.Thread(target=self._answer, args=(packet, client), daemon=True).start()

    def _answer(self, packet: bytes, client: tuple[str, int]) -> None:
        try:
            with contextlib.suppress(ValueError, OSError, dns.exception.DNSException):
                query = parse(packet)
                self._socket.sendto(self._answer_to(packet, query), client)
        finally:
            self._slots.release()

    def _answer_to(self, packet: bytes, query: dns.message.Message) -> bytes:
        name = name_of(query)
        address = self._addresses(name)
        if address:
            return own_answer(query, address)
        return no_such_name(query) if _NEVER.search(name) else self._forward(packet, query)

    def _forward(self, packet: bytes, query: dns.message.Message) -> bytes:
        """The host's answer, or the cached one to the same question."""
        expires, answer = self._cache.get(packet[2:], (0.0, b""))
        if expires < time.monotonic():
            answer = _ask(query)
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
            self._cache[packet[2:]] = (time.monotonic() + _CACHE_SECONDS, answer)
        return packet[:2] + answer[2:]


def _ask(query: dns.message.Message) -> bytes:
    """Ask the host's resolvers in turn. Raises OSError when none answers."""
    for server in upstream():
        with contextlib.suppress(dns.exception.Timeout, OSError):
            answer = dns.query.udp(
                query, server, timeout=_TIMEOUT, ignore_unexpected=True, ignore_errors=True
            )
            return answer.to_wire()
    raise OSError("no resolver answered")
