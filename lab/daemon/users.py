"""The runs that use a lab, and builds that prepare theirs: it is not taken down under them unless
somebody insists."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kiln.base.errors import operation_failed
from lab.base import folders
from lab.base.settings import Lab

# Seconds for a run to remove what it created: an instance, a key pair, an AMI.
_GRACE = 60.0
_RUNS, _PREPARING = "runs", "preparing"


@dataclass(frozen=True)
class User:
    """A run in progress, or the preparation of one: its process, and what it is in words."""

    process: int
    text: str
    prepares: bool = False


@contextlib.contextmanager
def using(lab: Lab, run_id: str, recipe: str) -> Iterator[None]:
    """While inside, this process's run counts as a user of the lab.

    A locked file records it: the lock goes with the process, however it ends.
    """
    folder = _folder(lab, _RUNS)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / run_id
    with _locked(path, f"run {run_id} of {recipe}, process {os.getpid()}"):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def preparing(lab: Lab, what: str) -> Iterator[None]:
    """While inside, this process counts as a user of the lab, also without a run.

    `what` is what it works on, or is going to. If it cannot be noted, as on a full disk, the
    error comes from the preparation, which explains it better.
    """
    text = f"{what}, process {os.getpid()}"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            folder = _folder(lab, _PREPARING)
            folders.private(lab.root, folder)
            path = folder / secrets.token_hex(8)
            stack.callback(path.unlink, missing_ok=True)
            stack.enter_context(_locked(path, text))
        yield


@contextlib.contextmanager
def _locked(path: Path, text: str) -> Iterator[None]:
    """A file with that text, locked. Until it is, `users` takes it for a killed run's: then another
    is made."""
    while True:
        with path.open("w") as file:
            file.write(text)
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is(file, path):
                yield
                return


def _is(file: IO[str], path: Path) -> bool:
    """Return True if an open file is still the one at its path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def runs(lab: Lab) -> list[User]:
    """The runs that use the lab now."""
    return [user for user in users(lab) if not user.prepares]


def users(lab: Lab) -> list[User]:
    """The runs that use the lab now, and the processes that have none yet. Files that killed ones
    have left are removed."""
    # In this order: a run begins before its preparation ends, and would be missed in the other.
    waiting = _those_of(lab, _PREPARING)
    running = _those_of(lab, _RUNS)
    with_runs = {user.process for user in running}
    return [*running, *(user for user in waiting if user.process not in with_runs)]


def _those_of(lab: Lab, kind: str) -> list[User]:
    users = []
    for path in sorted(_folder(lab, kind).glob("*")):
        with contextlib.suppress(FileNotFoundError), path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = file.read()
                match = re.search(r"process ([0-9]+)$", text)
                process = int(match[1]) if match else 0
                users.append(User(process, text or f"run {path.name}", kind == _PREPARING))
            else:
                path.unlink(missing_ok=True)
    return users


def end(lab: Lab, say: Callable[[str], None]) -> None:
    """End the runs that use the lab, as Ctrl-C would; waits until they have cleaned up."""
    for user in users(lab):
        say(f"ending {user.text}")
        if user.process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(user.process, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE
    while (left := users(lab)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for user in left:
        say(f"{user.text} has not ended after {_GRACE:.0f} s; it ends when the lab is gone")


def refuse_if_used(lab: Lab) -> None:
    """Raises operation_failed (exit status 1), naming them, while runs use the lab."""
    if running := users(lab):
        raise operation_failed(
            f"{lab.bridge} is in use: {'; '.join(user.text for user in running)}",
            hint="wait for it or stop it with Ctrl-C; with --force it is ended first",
        )


def _folder(lab: Lab, kind: str) -> Path:
    return lab.root / f".{lab.bridge}.{kind}"
