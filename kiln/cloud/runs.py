"""A run: one build or verification, its folder, its lock, its name on every resource."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from kiln.base.errors import operation_failed
from kiln.base.paths import ROOT, build_dir
from kiln.cloud.target import Target


@dataclass(frozen=True)
class Run:
    """One run. `id` is on the tags of everything it makes (`kiln:run-id`)."""

    id: str
    recipe: str
    folder: Path

    @property
    def record(self) -> Path:
        return self.folder / "record.json"

    @property
    def state(self) -> Path:
        """Where it runs: what a later run needs to clean up after a crash."""
        return self.folder / "run.json"

    def keeps_its_ami(self) -> None:
        """From now on a later clean-up leaves its AMI alone."""
        told = json.loads(self.state.read_text())
        self.state.write_text(json.dumps({**told, "amis": False}))

    def settled(self) -> None:
        """Nothing of it is left to be removed."""
        self.state.unlink(missing_ok=True)


@contextlib.contextmanager
def started(recipe: str, target: Target) -> Iterator[Run]:
    """A new run of a recipe, alone: a second one at the same time is refused.

    Until it is `settled`, a later build takes it for crashed and removes what carries its id.
    Raises KilnError (exit code 1) when another process builds the same AMI.
    """
    parent = build_dir() / recipe
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / ".lock").open("a+") as lock:
        if not _locked(lock):
            lock.seek(0)
            raise operation_failed(
                f"{recipe} is being built already: {lock.read().strip()}",
                hint="wait for it, or stop it with Ctrl-C: it cleans up after itself",
            ) from None
        now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        run_id = f"{now}-{secrets.token_hex(2)}"
        run = Run(run_id, recipe, parent / run_id)
        lock.seek(0)
        lock.truncate()
        lock.write(f"run {run.id}, process {os.getpid()}")
        lock.flush()
        run.folder.mkdir()
        told = {
            "run_id": run.id,
            "target": target.kind,
            "place": target.place,
            "where": target.where,
            "region": target.region,
            "amis": True,
        }
        try:
            run.state.write_text(json.dumps(told))
        except OSError:
            shutil.rmtree(run.folder)
            raise
        yield run


def _locked(lock: IO[str]) -> bool:
    """Take the lock, unless it is held for longer than somebody takes to look who holds it."""
    for _ in range(10):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.05)
    return False


@dataclass(frozen=True)
class DeadRun:
    """A run that ended without having cleaned up. `amis`: also its AMI is half-made."""

    run_id: str
    target: str
    place: str | None
    region: str
    amis: bool
    state: Path
    where: str = "another place"


def dead() -> list[DeadRun]:
    """The runs in this checkout that crashed: their run.json is there, nobody holds their lock."""
    found = []
    for state in sorted(build_dir().glob("*/*/run.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads(state.read_text())
            if not _alive(told["run_id"], state.parent.parent / ".lock"):
                found.append(DeadRun(**told, state=state))
    return found


def _alive(run_id: str, lock: Path) -> bool:
    with lock.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            return f"run {run_id}," in handle.read()
    return False


def git_commit() -> str:
    """The checkout's commit, with `-dirty` when tracked files differ; `unknown` without git."""
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if changed else commit


def _git(*arguments: str) -> str:
    # The owner of the checkout may be another user than root, who runs the lab.
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
