"""The long processes of a run: in sessions of their own, marked with its id, ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kiln.base.stopping import Stop

# Marks the environment of every process that a run starts: a later run finds leftovers by it.
_MARK = "KILN_RUN_ID"
_POLL_SECONDS = 0.1


def start(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[str]:
    """Start a command in `folder`; its stdout has both outputs, as text. It reads no input.

    It leads a session of its own, so that the terminal's Ctrl-C reaches only this process, which
    then ends the other.
    """
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


@contextlib.contextmanager
def ending(process: subprocess.Popen[str], stop: Stop) -> Iterator[None]:
    """While inside, kill a process (a session leader) and its group as soon as `stop` is set."""

    def watch() -> None:
        while process.poll() is None and not over.is_set():
            if stop.is_set():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            over.wait(_POLL_SECONDS)

    over = threading.Event()
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def run_environment(run_id: str) -> dict[str, str]:
    """The environment variable that marks a process as part of a run."""
    return {_MARK: run_id}


def end_processes(run_id: str) -> None:
    """Kill the processes that a crashed run left: Packer and its plugins, the checks, their SSH."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == run_id:
                process.kill()
