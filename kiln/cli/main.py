"""Run ./invoke: the process, its errors and its exit status."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import signal
import sys
from collections.abc import Sequence

from kiln.base.errors import OPERATION_FAILED, KilnError, operation_failed
from kiln.base.paths import ROOT
from kiln.cli.output import log
from kiln.cli.program import Kiln
from kiln.cli.task import Tasks


def main(tasks: Tasks) -> None:
    """Run the tasks that the command line names, in the caller's folder."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot encode must not end the task.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with contextlib.suppress(OSError):
        os.chdir(os.environ.pop("KILN_CWD", "."))
    # Files go from here into images, whatever the caller's umask is.
    os.umask(0o022)
    _keep_loopback_from_proxies()
    status = run(sys.argv, tasks)
    # Python is about to exit, and would print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise SystemExit(status)


def _keep_loopback_from_proxies() -> None:
    """Reach 127.0.0.1, where the lab answers, directly; Go's programs do that by themselves."""
    if any(name.lower().endswith("_proxy") for name in os.environ):
        lower, upper = os.environ.get("no_proxy"), os.environ.get("NO_PROXY")
        for name, hosts in (("no_proxy", lower or upper), ("NO_PROXY", upper or lower)):
            if hosts != "*":
                os.environ[name] = ",".join(filter(None, [hosts, "127.0.0.1", "localhost"]))


def run(argv: Sequence[str], tasks: Tasks) -> int:
    """Parse `argv` (the first word is the program) and run its tasks; return the exit status.

    With --json an error is a line of JSON on stdout too. A programming error is a traceback.
    """
    version = re.search('^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    program = Kiln(version and version[1], tasks, name="AMI Kiln", binary="./invoke")
    try:
        try:
            program.run(list(argv))
        finally:
            sys.stdout.flush()  # may fail as well
    except SystemExit as end:
        return int(end.code or 0)
    except (KilnError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader, such as `| head`, is gone
            _discard_output()
            return OPERATION_FAILED
        refused = error if isinstance(error, KilnError) else _failed(error)
        log(refused, error=True)
        if "--json" in argv:
            print(json.dumps({"error": refused.as_json()}), flush=True)
        return refused.exit_status
    return 0


def _failed(error: OSError) -> KilnError:
    """Return the error of a file that cannot be read or written."""
    if error.errno == errno.ENOSPC:
        _discard_output()
    elif error.filename is None:
        raise error
    denied = error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0
    hint = "files of the lab belong to root: run it with sudo" if denied else ""
    return operation_failed(f"{error.filename or 'output'}: {error.strerror}", hint=hint)


def _discard_output() -> None:
    """Send stdout nowhere: Python flushes it on exit and would report the same error again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
