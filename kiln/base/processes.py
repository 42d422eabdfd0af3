"""The long processes of a run, marked with its id and ended with it; SIGINT and SIGTERM as a flag
that a run polls, so that no exception cuts its clean-up short."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError

_STEP = 0.1


class StoppedError(Exception):
    """The run was asked to stop."""


# Seconds that Packer has to end its instance when a run is asked to stop. It then waits until EC2
# has, for up to an hour; the run's own clean-up looks for all that Packer has made.
_GRACE = 60.0


class Stop:
    """The end of a run: it was asked to stop, or cannot succeed any more.

    A plain flag, which a signal handler can set at any time. (threading.Event takes a lock, which
    the interrupted code may hold.) A run's own Stop, made with `for_run`, is also set when that of
    the whole build is.
    """

    def __init__(self, build: Stop | None = None) -> None:
        self._signals = 0
        self._build = build
        self._error: KilnError | None = None
        # Seconds that a program has for its own clean-up after this was set.
        self.grace = _GRACE

    def for_run(self) -> Stop:
        """A Stop for one of the runs: it can be given up without the others."""
        return Stop(self)

    def set(self) -> None:
        self._signals += 1

    def give_up(self, error: KilnError, *, grace: float) -> None:
        """Stop because of an error that does not go away; `check` raises it.

        `grace`: the seconds that a program has to remove its resources. The first error counts.
        """
        if self._error is None:
            self.grace = grace
            self._error = error

    @property
    def is_given_up(self) -> bool:
        """True if an error ended the run, rather than a person."""
        return self._error is not None

    @property
    def again(self) -> int:
        """Number of times a person has asked while it stopped already: what waits when this rises
        does not wait any longer. The first time only starts the clean-up, which may have begun."""
        return self._build.again if self._build else max(self._signals - 1, 0)

    def is_set(self) -> bool:
        build = self._build is not None and self._build.is_set()
        return self._signals > 0 or build or self._error is not None

    def check(self) -> None:
        """Raise StoppedError if the run was asked to stop, or the error it was given up for."""
        if self._error is not None:
            raise self._error
        if self.is_set():
            raise StoppedError

    def sleep(self, seconds: float) -> None:
        """Sleep. Raises StoppedError as soon as the run is asked to stop."""
        end = time.monotonic() + seconds
        self.check()
        while (remaining := end - time.monotonic()) > 0:
            time.sleep(min(remaining, _STEP))
            self.check()


_FIRST = "stopping: removing what the run created; Ctrl-C again waits no longer for Packer or EC2"
_AGAIN = "still stopping: not waiting any longer; what is left is named at the end"


@contextlib.contextmanager
def on_signals(stop: Stop, first: str = _FIRST, again: str = _AGAIN) -> Iterator[None]:
    """While inside, SIGINT and SIGTERM set `stop` instead of raising, and print what happens next:
    `first`, and from the second time on `again`.

    Does nothing outside the main thread, which alone receives signals in Python.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        message = again if stop.is_set() else first
        stop.set()
        # Not print: the signal may have interrupted a print.
        with contextlib.suppress(OSError):
            os.write(2, f"{message}\n".encode())

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Marks the environment of every process that a run starts: a later run finds leftovers by it.
_MARK = "KILN_RUN_ID"
_POLL_SECONDS = 0.1


def run(command: Sequence[str | Path], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, its outputs as text. It reads no input."""
    text = {"text": True, "encoding": "utf-8", "errors": "replace"}
    how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, **text, **more}
    return subprocess.run(command, check=False, **how)


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
def beside(work: Callable[[threading.Event], None], *, joined: bool = False) -> Iterator[None]:
    """While inside, `work` goes on in a thread: until the event is set that it gets. Unless
    `joined`, it may outlast the block."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        if joined:
            thread.join()


def ending(process: subprocess.Popen[str], stop: Stop) -> AbstractContextManager[None]:
    """While inside, kill a process (a session leader) and its group as soon as `stop` is set."""

    def watch(over: threading.Event) -> None:
        while process.poll() is None and not over.is_set():
            if stop.is_set():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            over.wait(_POLL_SECONDS)

    return beside(watch)


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
