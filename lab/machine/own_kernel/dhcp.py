"""DHCP for machines with their own kernel: each gets the address that EC2 reports for it.

Guests that share this machine's kernel get theirs from outside. RFC 2131 and 2132; the options are
those of a VPC: https://docs.aws.amazon.com/vpc/latest/userguide/DHCPOptionSet.html
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
from ipaddress import IPv4Address

from lab.base.settings import Lab
from lab.machine import bridge

log = logging.getLogger("lab.dhcp")

_LEASE = 3600  # seconds
_COOKIE = b"\x63\x82\x53\x63"
_HEADER = struct.Struct("!BBBBIHH4s4s4s4s16s64s128s")
_DISCOVER, _OFFER, _REQUEST, _ACK = 1, 2, 3, 5
_TYPE = 53

_machines: dict[str, tuple[str, str]] = {}  # MAC → address, domain
_started = threading.Lock()
_server: list[socket.socket] = []


def offer(lab: Lab, mac: str, address: str, domain: str) -> None:
    """Answer a machine from now on. The first call starts the server on the lab's bridge."""
    _machines[mac.lower()] = (address, domain)
    with _started:
        if not _server:
            _server.append(_listen(lab))
            threading.Thread(target=_serve, args=(lab, _server[0]), daemon=True).start()


def forget(mac: str) -> None:
    """Answer a machine no more."""
    _machines.pop(mac.lower(), None)


def reply(lab: Lab, question: bytes, address: str, domain: str) -> bytes | None:
    """The answer to a machine's packet; None to one that needs none."""
    if len(question) < _HEADER.size + 4 or question[_HEADER.size :][:4] != _COOKIE:
        return None
    fields = _HEADER.unpack_from(question)
    kind = _options(question[_HEADER.size + 4 :]).get(_TYPE, b"\0") or b"\0"
    if fields[0] != 1 or kind[0] not in (_DISCOVER, _REQUEST):
        return None
    own, gateway = IPv4Address(address).packed, IPv4Address(lab.gateway).packed
    # The reply goes to everybody on the bridge: the machine has no address yet to send it to.
    head = _HEADER.pack(
        *(2, 1, 6, 0, fields[4], 0, 0x8000, fields[7], own, gateway, bytes(4)),
        *(fields[11], bytes(64), bytes(128)),
    )
    values = {
        _TYPE: bytes([_OFFER if kind[0] == _DISCOVER else _ACK]),
        54: gateway,
        51: struct.pack("!I", _LEASE),
        1: IPv4Address("255.255.0.0").packed,
        3: gateway,
        6: IPv4Address(lab.resolver).packed,
        15: domain.encode(),
        26: struct.pack("!H", bridge.mtu()),
    }
    body = b"".join(bytes([code, len(value)]) + value for code, value in values.items())
    return (head + _COOKIE + body + b"\xff").ljust(300, b"\0")


def _options(text: bytes) -> dict[int, bytes]:
    options = {}
    while text and text[0] != 255:
        if text[0] == 0:
            text = text[1:]
            continue
        if len(text) < 2:
            break
        options[text[0]] = text[2 : 2 + text[1]]
        text = text[2 + text[1] :]
    return options


def _listen(lab: Lab) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, lab.bridge.encode() + b"\0")
    server.bind(("", 67))
    return server


def _serve(lab: Lab, server: socket.socket) -> None:
    while True:
        question = server.recv(4096)
        mac = question[28:34].hex(":")
        if mac not in _machines:
            continue
        try:
            answer = reply(lab, question, *_machines[mac])
            if answer:
                server.sendto(answer, ("255.255.255.255", 68))
        except OSError as error:
            log.warning("a DHCP request of %s: %s", mac, error)
