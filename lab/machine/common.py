"""Common parts of guests and machines with their own kernel: their process, the sign of their
boot."""

from __future__ import annotations

import socket
import threading
import time
import uuid


class DidNotStartError(Exception):
    """The host could not start a guest; the image is not at fault."""


def hypervisor_id() -> str:
    """A UUID that begins as EC2's do."""
    return f"ec2{str(uuid.uuid4())[3:]}"


def has_booted(
    address: str, off: threading.Event, timeout: float, pause: float, patience: float = 0.5
) -> bool:
    """Wait until a machine answers on port 22; False after `timeout` seconds and when it is off.

    Between two tries are `pause` seconds; `patience` is how long its first word may take.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and not off.is_set():
        if answers(address, 22, patience):
            return True
        time.sleep(pause)
    return False


def answers(address: str, port: int, timeout: float = 0.5) -> bool:
    """Return True if an SSH server answers within `timeout` seconds."""
    try:
        with socket.create_connection((address, port), timeout=timeout) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
