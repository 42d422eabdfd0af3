"""Hooks: executables in /etc/kiln/xid.d/ that run on matching events.

The monitor only writes a file into a spool; `kiln-xid-hooks.path` then starts `gpu-xid hooks`,
which runs the hooks. The monitor therefore needs none of the hooks' privileges, never forks, and
cannot be affected by a hook that hangs or fails.
"""

from __future__ import annotations

import os

from . import event

TYPE_CHECKING = False  # the module typing would cost the monitor 0.7 MiB
if TYPE_CHECKING:
    from typing import Any

SPOOL = "/run/gpu-xid/hooks"
_MAX_WAITING = 200


class Spool:
    """Writes matching events into the spool. Never raises; counts the events it drops."""

    def __init__(self, conf: dict[str, Any], path: str = SPOOL) -> None:
        self.conf = conf
        self.path = path
        self.dropped = 0  # since the last report
        self._number = 0

    def put(self, line: dict[str, Any]) -> None:
        """Hand an event to the hooks, if it matches and there are any."""
        if not matches(self.conf, line) or not executables(self.conf["dir"]):
            return
        self._number += 1
        name = "{}-{}-{:06d}".format(line["time"].replace(":", ""), os.getpid(), self._number)
        data = event.encode(line)
        temporary = f"{self.path}/.{name}"
        try:
            if len(os.listdir(self.path)) >= _MAX_WAITING:
                self.dropped += 1
                return
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                written = os.write(fd, data)
            finally:
                os.close(fd)
            if written == len(data):
                os.rename(temporary, f"{self.path}/{name}.json")
            else:  # /run is full: half an event is useless to a hook
                os.unlink(temporary)
                self.dropped += 1
        except OSError:
            self.dropped += 1


def matches(conf: dict[str, Any], line: dict[str, Any]) -> bool:
    """Return True if the hooks run on this event: by severity or code.

    A GPU that was lost without an Xid matches `xid 79`. Test lines written from user space match
    only if `injected` is set: a drill must not drain a node by accident.
    """
    if line.get("injected") and not conf["injected"]:
        return False
    codes = {f"{kind} {line[kind]}" for kind in ("xid", "sxid") if line.get(kind) is not None}
    if line.get("implied_xid") is not None:
        codes.add("xid {}".format(line["implied_xid"]))
    if codes.intersection(conf["codes"]):
        return True
    return line["severity"] in conf["severity"]


def executables(directory: str) -> list[str]:
    """Return the hooks in the order in which they run, by name.

    Files that are not executable or end in `.example` do not run.
    """
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    paths = [
        f"{directory}/{name}"
        for name in names
        if not name.startswith(".") and not name.endswith((".example", "~"))
    ]
    return [path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)]


def run(conf: dict[str, Any], say: Any, spool: str = SPOOL) -> int:
    """Run every hook on every event of the spool; returns 0 when all succeeded, else 1.

    An event leaves the spool before anything can fail: systemd starts this program again as long
    as there is one, and a hook that brings the machine down must not run again.
    """
    failed = False
    while True:
        try:
            names = sorted(name for name in os.listdir(spool) if not name.startswith("."))
        except FileNotFoundError:
            names = []
        if not names:
            return 1 if failed else 0
        for name in names:
            aside = f"{spool}/.{name}"
            os.rename(f"{spool}/{name}", aside)
            try:
                with open(aside, "rb") as file:
                    data = file.read()
                os.unlink(aside)
            except OSError as error:
                say(f"{aside}: cannot be read: {error.strerror}")
                continue
            for program in executables(conf["dir"]):
                failed = not _run_hook(program, data, conf["timeout_s"], say) or failed


def _run_hook(program: str, data: bytes, timeout_s: float, say: Any) -> bool:
    """Run a hook in its own process group; True when it ended with status 0 in time."""
    import signal
    import subprocess  # not in the memory of the monitor

    try:
        child = subprocess.Popen([program], stdin=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        reason = error.strerror
        if isinstance(error, FileNotFoundError):
            reason = "its first line names a program that does not exist (or ends in CRLF)"
        say(f"{program}: cannot be run: {reason}")
        return False
    try:
        child.communicate(data, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        say(f"{program}: killed after {timeout_s} s")
        return False
    if child.returncode:
        say(f"{program}: exit status {child.returncode}")
    return child.returncode == 0
