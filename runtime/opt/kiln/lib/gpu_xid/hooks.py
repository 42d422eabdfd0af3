"""Hooks: executables in /etc/kiln/xid.d/ that run on matching events.

The monitor only drops a file into a spool; `gpu-xid-hooks.path` starts `gpu-xid hooks`, which
runs them. So the monitor needs no right that a hook needs, never forks, and a hook that hangs
or fails cannot touch it.
"""

import errno
import os

from . import event
from .catalogue import SEVERITIES

SPOOL = "/run/gpu-xid/hooks"
_MAX_WAITING = 200


class Spool:
    """Writes matching events for `gpu-xid hooks` to find. Never raises; counts what it drops."""

    def __init__(self, conf, path=SPOOL):
        self.conf = conf
        self.path = path
        self.dropped = 0  # until somebody has said so
        self.put_so_far = 0

    def put(self, line):
        """False when no event of this code and severity concerns the hooks."""
        if not matches(self.conf, line):
            return False
        if executables(self.conf["dir"]):
            self._put(line)
        return True

    def _put(self, line):
        try:
            if len(os.listdir(self.path)) >= _MAX_WAITING:
                self.dropped += 1
                return
            # One record may hold two events, and the journal has no numbers.
            self.put_so_far += 1
            name = "%s-%09d.json" % (line["time"].replace(":", ""), self.put_so_far)
            self._write("%s/.%s" % (self.path, name), "%s/%s" % (self.path, name), line)
        except OSError:
            self.dropped += 1

    @staticmethod
    def _write(temporary, path, line):
        data = event.encode(line)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if os.write(fd, data) == len(data):
                os.rename(temporary, path)
                return
        finally:
            os.close(fd)
        os.unlink(temporary)  # /run is full: half an event helps no hook
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def matches(conf, line):
    """Does this event concern the hooks? By severity or code, and never for a test line written
    from user space unless `injected` says so: a drill must not drain a node by accident."""
    if line.get("injected") and not conf["injected"]:
        return False
    if line.get("previous_boot"):
        return False
    codes = conf["codes"]
    for kind in ("xid", "sxid") if codes else ():
        if line.get(kind) is not None and "%s %d" % (kind, line[kind]) in codes:
            return True
    return line["severity"] in SEVERITIES and line["severity"] in conf["severity"]


def executables(directory):
    """The hooks in the order they run: by name; what is not executable or ends in `.example` is
    switched off."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    paths = [
        "%s/%s" % (directory, name)
        for name in names
        if not name.startswith(".") and not name.endswith((".example", "~"))
    ]
    return [path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)]
