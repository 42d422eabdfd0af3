"""The processes that serve labs on this machine, whatever the folders of the labs.

A number in a file says little: after a crash or a reboot it may be another program's.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from kiln.base.errors import operation_failed
from lab.base.settings import DEFAULT_ROOT, LABS, Lab

PROGRAM = ("-m", "lab.daemon.server")


@dataclass(frozen=True)
class Server:
    """A process that serves a lab: bridge and network are the index's, the rest is the folder's."""

    pid: int
    started: float
    lab: Lab


def find(lab: Lab) -> list[int]:
    """The processes that serve this lab, or start or end it: one, or none."""
    return [server.pid for server in _running() if server.lab == lab]


def elsewhere(lab: Lab) -> Path | None:
    """The folder of another lab with the same index that is up: its network is this lab's too."""
    others = (s.lab.root for s in _running() if s.lab.index == lab.index and s.lab != lab)
    return next(others, None)


def refuse_second(lab: Lab) -> None:
    """Raises operation_failed if an older process serves this lab, or one with its index."""
    if folder := elsewhere(lab):
        raise operation_failed(
            f"{lab.bridge} is up, and keeps its files in another folder: {folder}",
            hint=f"take another index: KILN_LAB_INDEX={(lab.index + 1) % LABS}, or end it: "
            f"KILN_LAB_STATE={folder} ./invoke lab.down",
        )
    own = next((s for s in _running() if s.pid == os.getpid()), None)
    for server in _running():
        if own and server.lab == lab and (server.started, server.pid) < (own.started, own.pid):
            raise operation_failed(f"process {server.pid} is serving {lab.bridge}, or starting it")


def serves(pid: int, lab: Lab) -> bool:
    """Return True if a process serves this lab."""
    with contextlib.suppress(psutil.Error, OSError):
        server = _server(psutil.Process(pid))
        return server is not None and server.lab == lab
    return False


def _running() -> list[Server]:
    servers = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            server = _server(process)
            servers += [server] if server else []
    return servers


def _server(process: psutil.Process) -> Server | None:
    """The lab that a process serves in this network: a container has one of its own. Raises
    psutil.Error and OSError."""
    if tuple(process.cmdline()[-2:]) != PROGRAM:
        return None
    # Anybody may start a process with these arguments; a lab is root's.
    if process.uids().effective != os.geteuid():
        return None
    if not Path(f"/proc/{process.pid}/ns/net").samefile("/proc/self/ns/net"):
        return None
    environment = process.environ()
    index = environment.get("KILN_LAB_INDEX", "0")
    root = Path(environment.get("KILN_LAB_STATE", DEFAULT_ROOT))
    lab = Lab(int(index) if index.isdecimal() else 0, Path(process.cwd()) / root)
    return Server(process.pid, process.create_time(), lab)
