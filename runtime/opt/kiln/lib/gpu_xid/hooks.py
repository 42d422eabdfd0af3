"""Hooks: executables in /etc/kiln/xid.d/ that run on matching events.

The monitor only writes a file into a spool; `gpu-xid-hooks.path` then starts `gpu-xid hooks`, which
runs the hooks. The monitor therefore needs none of the hooks' privileges, never forks, and cannot
be affected by a hook that hangs or fails.
"""

from __future__ import annotations

import errno
import os

from . import event
from .catalogue import SEVERITIES

TYPE_CHECKING = False  # the module typing would cost the daemon 0.7 MiB
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
        self.put_so_far = 0

    def put(self, line: dict[str, Any]) -> bool:
        """False when the event does not match: no event of its code and severity would."""
        if not matches(self.conf, line):
            return False
        if executables(self.conf["dir"]):
            self._put(line)
        return True

    def _put(self, line: dict[str, Any]) -> None:
        try:
            if len(os.listdir(self.path)) >= _MAX_WAITING:
                self.dropped += 1
                return
            # Not the sequence number: a record may hold two events, and the journal has none.
            self.put_so_far += 1
            name = "{}-{:09d}.json".format(line["time"].replace(":", ""), self.put_so_far)
            self._write(f"{self.path}/.{name}", f"{self.path}/{name}", line)
        except OSError:
            self.dropped += 1

    @staticmethod
    def _write(temporary: str, path: str, line: dict[str, Any]) -> None:
        data = event.encode(line)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if os.write(fd, data) == len(data):
                os.rename(temporary, path)
                return
        finally:
            os.close(fd)
        os.unlink(temporary)  # /run is full: half an event is useless to a hook
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def matches(conf: dict[str, Any], line: dict[str, Any]) -> bool:
    """Whether the hooks run on this event: by severity or code.

    Test lines written from user space match only if `injected` is set: a drill must not drain a
    node by accident.
    """
    if line.get("injected") and not conf["injected"]:
        return False
    if line.get("previous_boot"):
        return False
    codes = conf["codes"]
    for kind in ("xid", "sxid") if codes else ():
        if line.get(kind) is not None and f"{kind} {line[kind]}" in codes:
            return True
    return bool(line["severity"] in SEVERITIES and line["severity"] in conf["severity"])


def executables(directory: str) -> list[str]:
    """The hooks in the order in which they run, by name. Files that are not executable or end in
    `.example` do not run."""
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
