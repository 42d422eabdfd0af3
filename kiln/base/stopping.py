"""SIGINT and SIGTERM as a flag that a run looks at: no exception cuts its clean-up short."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

# In the environment of every process that a run starts: how a later run finds those of a dead one.
MARK = "KILN_RUN_ID"
_STEP = 0.1


class StoppedError(Exception):
    """The run was asked to stop. Its arguments say what has been removed already."""


class Stop:
    """Whether somebody asked for the end. A plain flag, which a signal handler may set any time.

    (threading.Event takes a lock for that, which the interrupted code may be holding.)
    """

    def __init__(self) -> None:
        self._asked = False

    def set(self) -> None:
        self._asked = True

    def is_set(self) -> bool:
        return self._asked

    def check(self) -> None:
        """Raise StoppedError when the end was asked for."""
        if self._asked:
            raise StoppedError

    def sleep(self, seconds: float) -> None:
        """Sleep. Raises StoppedError as soon as the end is asked for."""
        end = time.monotonic() + seconds
        self.check()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _STEP))
            self.check()


@contextlib.contextmanager
def on_signals(stop: Stop) -> Iterator[None]:
    """While inside, SIGINT and SIGTERM set `stop` instead of raising, and say what that means.

    In a thread other than the main one nothing changes: Python gives signals to the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        said = "still stopping" if stop.is_set() else "stopping"
        stop.set()
        # Not print: the signal may have come in the middle of one.
        with contextlib.suppress(OSError):
            os.write(2, f"{said}: what was made is being removed, please wait\n".encode())

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ending(process: subprocess.Popen[str], stop: Stop) -> Iterator[None]:
    """While inside, end a process (the leader of its session) as soon as `stop` is set."""

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


def environment(run_id: str) -> dict[str, str]:
    """What marks a process as one of a run."""
    return {MARK: run_id}


def end_processes(run_id: str) -> None:
    """End what a crashed run left running: Packer and its plugins, the checks, their SSH."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == run_id:
                process.kill()
