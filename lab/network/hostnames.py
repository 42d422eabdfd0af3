"""Makes EC2's names of instances lead to the guests on this machine, as they do in a VPC.

A client that connects by PrivateDnsName or PublicDnsName (Packer's `ssh_interface`) asks this
machine's resolver, so the names are in /etc/hosts while a guest runs. Each line ends with the
lab's mark; other lines are not touched.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.settings import Lab

log = logging.getLogger("lab.hostnames")

HOSTS = Path("/etc/hosts")


def add(lab: Lab, address: str, names: Sequence[str]) -> None:
    """Make this machine resolve `names` to `address`, until `remove` or `clear`."""
    _change(lambda lines: [*lines, f"{address} {' '.join(names)} {_mark(lab)}"])


def remove(lab: Lab, address: str) -> None:
    """Remove the names of an address that `add` was called with; nothing when there are none."""
    mark = _mark(lab)
    _change(
        lambda lines: [
            line
            for line in lines
            if not (line.startswith(f"{address} ") and line.endswith(f" {mark}"))
        ],
    )


def clear(lab: Lab) -> bool:
    """Remove all names of a lab; whether there were any."""
    mark = _mark(lab)
    return _change(lambda lines: [line for line in lines if not line.endswith(f" {mark}")])


def _mark(lab: Lab) -> str:
    return f"# AMI Kiln {lab.bridge}"


def _change(change: Callable[[list[str]], list[str]]) -> bool:
    """Change the lines of the file; whether they differ then.

    The file is written in place: in a container it is a mount, which cannot be replaced. Where it
    is read-only the names lead nowhere and addresses work as before.
    """
    try:
        # Locked itself, as all labs of this machine change it, whatever their folders.
        with HOSTS.open("rb") as locked:
            fcntl.flock(locked, fcntl.LOCK_EX)
            before = locked.read()
            lines = change(before.decode("utf-8", "surrogateescape").splitlines())
            after = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
            if after == before:
                return False
            file = os.open(HOSTS, os.O_WRONLY)
            try:
                os.pwrite(file, after, 0)
                os.ftruncate(file, len(after))
            finally:
                os.close(file)
    except OSError as error:
        log.warning("instances have no names on this machine: %s", error)
        return False
    return True
