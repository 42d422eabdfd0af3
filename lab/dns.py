"""The guests' DNS resolver, as a VPC has one: asks the host's, remembers, and knows what is not.

cloud-init asks for names that must not exist before it trusts any (RFC 2606's, and `instance-data`,
which only EC2-Classic had). A slow resolver on the host would cost every boot half a minute.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from pathlib import Path

_NXDOMAIN = 3
_KEPT_SECONDS = 60.0
_PATIENCE = 20.0
# https://www.rfc-editor.org/rfc/rfc2606 and names without a dot, of which a VPC knows none.
_NEVER = re.compile(
    r"(^|\.)(invalid|test|example|localhost)$|(^|\.)example\.(com|net|org)$|^[^.]*$"
)


def name_of(query: bytes) -> str:
    """The name a query asks for, lower case, without the last dot.

    Raises ValueError when the packet is no query. https://www.rfc-editor.org/rfc/rfc1035#section-4
    """
    labels, at = [], 12
    while at < len(query) and query[at]:
        end = at + 1 + query[at]
        if query[at] > 63 or end > len(query):
            raise ValueError("not a DNS query")
        labels.append(query[at + 1 : end].decode("ascii", "replace"))
        at = end
    if at + 5 > len(query):
        raise ValueError("not a DNS query")
    return ".".join(labels).lower()


def no_such_name(query: bytes) -> bytes:
    """The answer NXDOMAIN to a query: its own header and question, and nothing else."""
    at = 12
    while query[at]:
        at += 1 + query[at]
    flags = (0x8180 | _NXDOMAIN).to_bytes(2, "big")
    return query[:2] + flags + b"\0\1" + b"\0" * 6 + query[12 : at + 5]


def upstream() -> list[str]:
    """The host's resolvers; with systemd-resolved the real ones, not its loopback stub."""
    resolved = Path("/run/systemd/resolve/resolv.conf")
    path = resolved if resolved.exists() else Path("/etc/resolv.conf")
    return re.findall(r"^nameserver\s+(\S+)", path.read_text(), re.MULTILINE)


class Resolver:
    """A resolver on one address, port 53. `close` ends it."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        self._known: dict[bytes, tuple[float, bytes]] = {}
        threading.Thread(target=self._serve, daemon=True, name="dns").start()

    def close(self) -> None:
        """Stop answering."""
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                query, client = self._socket.recvfrom(4096)
            except OSError:
                return
            threading.Thread(target=self._answer, args=(query, client), daemon=True).start()

    def _answer(self, query: bytes, client: tuple[str, int]) -> None:
        with contextlib.suppress(ValueError, IndexError, OSError):
            never = _NEVER.search(name_of(query))
            answer = no_such_name(query) if never else self._asked(query)
            self._socket.sendto(answer, client)

    def _asked(self, query: bytes) -> bytes:
        """The host's answer, or the one remembered for the same question."""
        until, remembered = self._known.get(query[2:], (0.0, b""))
        if until < time.monotonic():
            remembered = _ask(query)
            self._known[query[2:]] = (time.monotonic() + _KEPT_SECONDS, remembered)
        return query[:2] + remembered[2:]


def _ask(query: bytes) -> bytes:
    """Ask the host's resolvers in turn. Raises OSError when none answers."""
    for server in upstream():
        family = socket.AF_INET6 if ":" in server else socket.AF_INET
        with (
            contextlib.suppress(TimeoutError),
            socket.socket(family, socket.SOCK_DGRAM) as asking,
        ):
            asking.settimeout(_PATIENCE)
            asking.sendto(query, (server, 53))
            return asking.recv(4096)
    raise OSError("no resolver answered")
