"""SIGINT and SIGTERM as a flag that a run polls, so that no exception cuts its clean-up short."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

# Marks the environment of every process that a run starts: a later run finds leftovers by it.
MARK = "KILN_RUN_ID"
_STEP = 0.1


class StoppedError(Exception):
    """The run was asked to stop. The arguments say what has been removed already."""


class Stop:
    """Whether the run was asked to stop: a plain flag, which a signal handler can set at any time.

    (threading.Event takes a lock, which the interrupted code may hold.)
    """

    def __init__(self) -> None:
        self._asked = False

    def set(self) -> None:
        self._asked = True

    def is_set(self) -> bool:
        return self._asked

    def check(self) -> None:
        """Raise StoppedError if the run was asked to stop."""
        if self._asked:
            raise StoppedError

    def sleep(self, seconds: float) -> None:
        """Sleep. Raises StoppedError as soon as the run is asked to stop."""
        end = time.monotonic() + seconds
        self.check()
        while (remaining := end - time.monotonic()) > 0:
            time.sleep(min(remaining, _STEP))
            self.check()


@contextlib.contextmanager
def on_signals(stop: Stop) -> Iterator[None]:
    """While inside, SIGINT and SIGTERM set `stop` instead of raising, and print what happens next.

    Does nothing outside the main thread, which alone receives signals in Python.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        state = "still stopping" if stop.is_set() else "stopping"
        stop.set()
        # Not print: the signal may have interrupted a print.
        with contextlib.suppress(OSError):
            os.write(2, f"{state}: removing what the run created, please wait\n".encode())

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ending(process: subprocess.Popen[str], stop: Stop) -> Iterator[None]:
    """While inside, kill a process (a session leader) and its group as soon as `stop` is set."""

    def watch() -> None:
        while process.poll() is None and not over.is_set():
            if stop.is_set():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            over.wait(_STEP)

    over = threading.Event()
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def run_environment(run_id: str) -> dict[str, str]:
    """The environment variable that marks a process as part of a run."""
    return {MARK: run_id}


def end_processes(run_id: str) -> None:
    """Kill the processes that a crashed run left: Packer and its plugins, the checks, their SSH."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == run_id:
                process.kill()
