"""`gpu-xid hooks`: run every executable of the hook directory on every event in the spool."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from typing import Any

from . import hooks
from .repeats import Repeats


def run(conf: dict[str, Any], spool: str | None = None, repeats: Repeats | None = None) -> int:
    """Returns exit status 0 when all hooks succeeded, else 1.

    `repeats` knows the events of the log: with it, a hook's environment says whether a restart is
    worth a try.

    An event leaves the spool before its hooks run, so that a hook that brings the machine down does
    not run again.
    """
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
                # Hide the file: systemd starts this service again as long as it sees one.
                os.rename(path, os.path.join(spool, "." + name))
                sys.stderr.write(f"gpu-xid: {path}: cannot be read: {error.strerror}\n")
                continue
            env = dict(os.environ, **_advice(repeats, event))
            for program in hooks.executables(conf["dir"]):
                failed = not _run_hook(program, event, conf["timeout_s"], env) or failed


def _advice(repeats: Repeats | None, event: bytes) -> dict[str, str]:
    try:
        row = json.loads(event.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    if repeats is None or not isinstance(row, dict) or not isinstance(row.get("time"), str):
        return {}
    if not isinstance(row.get("event"), str):
        return {}
    return repeats.environment(row)


def _run_hook(program: str, event: bytes, timeout_s: float, env: dict[str, str]) -> bool:
    """Run a hook in its own process group; True when it ended with status 0 in time."""
    try:
        child = subprocess.Popen([program], stdin=subprocess.PIPE, start_new_session=True, env=env)
    except OSError as error:
        trouble = error.strerror
        if error.errno == errno.ENOENT and os.path.exists(program):
            trouble = "its first line names a program that does not exist (or ends in CRLF)"
        sys.stderr.write(f"gpu-xid: {program}: cannot be run: {trouble}\n")
        return False
    try:
        child.communicate(event, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        sys.stderr.write(f"gpu-xid: {program}: killed after {timeout_s} s\n")
        return False
    if child.returncode < 0:
        sys.stderr.write(f"gpu-xid: {program}: ended by signal {-child.returncode}\n")
    elif child.returncode:
        sys.stderr.write(f"gpu-xid: {program}: exit status {child.returncode}\n")
    return child.returncode == 0
