"""`gpu-xid hooks`: run every executable of the hook directory on every event in the spool."""

import errno
import os
import signal
import subprocess
import sys

from . import hooks


def run(conf, spool=None):
    """Exit status 0 when all hooks succeeded, else 1. An event leaves the spool before its hooks
    run: one that brings the machine down must not be met again at the next boot."""
    spool = spool or hooks.SPOOL
    failed = False
    while True:
        try:
            names = sorted(name for name in os.listdir(spool) if not name.startswith("."))
        except FileNotFoundError:
            names = []
        if not names:
            return 1 if failed else 0
        for name in names:
            path = os.path.join(spool, name)
            try:
                with open(path, "rb") as file:
                    event = file.read()
                os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                # Out of systemd's sight: it starts this again as long as there is a file to see.
                os.rename(path, os.path.join(spool, "." + name))
                sys.stderr.write("gpu-xid: %s: no event: %s\n" % (path, error.strerror))
                continue
            for program in hooks.executables(conf["dir"]):
                failed = not _run_one(program, event, conf["timeout_s"]) or failed


def _run_one(program, event, timeout_s):
    """Run one hook in its own process group; True when it ended with 0 in time."""
    try:
        child = subprocess.Popen([program], stdin=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        trouble = error.strerror
        if error.errno == errno.ENOENT and os.path.exists(program):
            trouble = "its first line names a program that is not there (or ends in CRLF)"
        sys.stderr.write("gpu-xid: %s: cannot be run: %s\n" % (program, trouble))
        return False
    try:
        child.communicate(event, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        sys.stderr.write("gpu-xid: %s: killed after %s s\n" % (program, timeout_s))
        return False
    if child.returncode < 0:
        sys.stderr.write("gpu-xid: %s: ended by signal %d\n" % (program, -child.returncode))
    elif child.returncode:
        sys.stderr.write("gpu-xid: %s: exit status %d\n" % (program, child.returncode))
    return child.returncode == 0
