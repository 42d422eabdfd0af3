"""Connections to what listens on localhost in a guest."""

from __future__ import annotations

import ctypes
import os
import socket
import threading

from lab.guests.instances import LabInstance

_LIBC = ctypes.CDLL(None, use_errno=True)
# <sched.h>
_CLONE_NEWNET = 0x40000000
_TIMEOUT = 10.0


def boot_of(instance: LabInstance) -> int | None:
    """What is another one after each boot of an instance's machine; None while it is off."""
    guest = instance.guest
    if guest is None:
        return None
    leader = getattr(guest, "leader", None)
    return leader() if leader else 0  # a machine with its own kernel has no process here


def connect(instance: LabInstance, port: int) -> socket.socket:
    """A connection to a port on localhost of an instance's machine. Raises OSError."""
    boot = boot_of(instance)
    if boot is None:
        raise ConnectionRefusedError(f"{instance.id} is off")
    if boot == 0:
        return _made(instance.address, port)
    results: list[socket.socket | OSError] = []

    def make() -> None:
        # A namespace is a thread's: this one has no other work, before or after.
        try:
            _enter(boot)
            results.append(_made("127.0.0.1", port))
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    (result,) = results
    if isinstance(result, OSError):
        raise result
    return result


def _made(address: str, port: int) -> socket.socket:
    made = socket.create_connection((address, port), _TIMEOUT)
    made.settimeout(None)  # the limit is for the connection, not for its silence
    return made


def _enter(leader: int) -> None:
    namespace = os.open(f"/proc/{leader}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _LIBC.setns(namespace, _CLONE_NEWNET):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    finally:
        os.close(namespace)
