"""A run: one build or verification, with its id, folder and lock."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import json
import os
import pwd
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kiln.base import vocabulary
from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import ROOT, build_dir
from kiln.base.times import as_stamp, utc_now
from kiln.cloud.target import Target


@dataclass(frozen=True)
class Run:
    """One run. Everything it creates is tagged with its `id` (`kiln:run-id`)."""

    id: str
    recipe: str
    folder: Path

    @property
    def record(self) -> Path:
        return self.folder / "record.json"

    @property
    def state(self) -> Path:
        """The file from which a later run cleans up after a crash."""
        return self.folder / "run.json"

    def keeps_its_ami(self) -> None:
        """Make a later clean-up leave the run's AMI alone."""
        with contextlib.suppress(ValueError):  # damaged meanwhile: `dead` refuses it then
            self._write_state({**json.loads(self.state.read_text()), "amis": False})

    def _write_state(self, state: dict[str, Any]) -> None:
        """Write the state; other processes, which look for dead runs, find it whole."""
        fresh = self.state.with_name(f".run.json.{os.getpid()}")
        fresh.touch(mode=0o644)
        fresh.write_text(json.dumps(state))
        fresh.replace(self.state)

    def settled(self) -> None:
        """Record that nothing of the run remains to be removed."""
        self.state.unlink(missing_ok=True)


def new_id() -> str:
    """An id for a run that begins now: 20260801T120000Z-1a2b."""
    return f"{as_stamp(utc_now())}-{secrets.token_hex(2)}"


@contextlib.contextmanager
def started(recipe: str, target: Target) -> Iterator[Run]:
    """A new run of a recipe, under the recipe's lock.

    Until it is `settled`, a later build considers it crashed and removes resources with its id.
    Raises KilnError (exit status 1) if another process builds the same AMI.
    """
    vocabulary.RECIPE_NAME.required(recipe, "the recipe's name")
    parent = build_dir() / recipe
    # What a later run removes is written here: nobody else may write it, whatever the umask says.
    build_dir().mkdir(mode=0o755, parents=True, exist_ok=True)
    parent.mkdir(mode=0o755, exist_ok=True)
    with (parent / ".lock").open("a+") as lock:
        if not _locked(lock):
            lock.seek(0)
            raise operation_failed(
                f"{recipe} is being built already: {lock.read().strip()}",
                hint="wait for it, or stop it with Ctrl-C: it cleans up after itself",
            ) from None
        run_id = new_id()
        run = Run(run_id, recipe, parent / run_id)
        lock.seek(0)
        lock.truncate()
        lock.write(f"run {run.id}, process {os.getpid()}")
        lock.flush()
        run.folder.mkdir(mode=0o755)
        state = {
            "run_id": run.id,
            "target": target.kind,
            "place": target.place,
            "where": target.where,
            "region": target.region,
            "amis": True,
        }
        try:
            run._write_state(state)
        except OSError:
            shutil.rmtree(run.folder)
            raise
        with target.in_use(run.id, recipe):
            yield run


def _locked(lock: IO[str]) -> bool:
    """Take the lock; false if a run has it. Who only looks (`_alive`) shares it for a moment, which
    is long on a busy machine."""
    for _ in range(1200):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(lock, fcntl.LOCK_UN)
        time.sleep(0.05)
    return False


@dataclass(frozen=True)
class DeadRun:
    """A run that ended without cleaning up. `amis`: its AMI is incomplete and is removed too."""

    run_id: str
    target: str
    place: str | None
    region: str
    amis: bool
    state: Path
    where: str = "another place"


def dead(refused: Callable[[str], None]) -> list[DeadRun]:
    """The runs in this checkout that crashed: run.json exists and no process holds the lock.

    What it names is going to be removed, so `refused` gets the reason for each run.json that this
    program did not write: a wrong value, another folder's id, a file that others can write.
    """
    runs = []
    for state in sorted(build_dir().glob("*/*/run.json")):
        run = _dead(state, refused)
        if run:
            runs.append(run)
    return runs


def _dead(state: Path, refused: Callable[[str], None]) -> DeadRun | None:
    """The run of a run.json if it has crashed; None if not, or if the file was refused."""
    try:
        _require_own(state)
        fields = _fields(json.loads(state.read_text(encoding="utf-8")), state)
        alive = _alive(fields["run_id"], state.parent.parent / ".lock")
        return None if alive else DeadRun(**fields, state=state)
    except FileNotFoundError:  # its run has ended meanwhile
        pass
    except (OSError, ValueError) as error:
        refused(f"{state}: not the state of a run, so nothing is removed for it: {error}")
    except KilnError as error:
        refused(f"{state}: {error.message}; nothing is removed for it")
    return None


def _require_own(state: Path) -> None:
    """Raises KilnError if another user wrote a run's state, or could have."""
    mine = {0, os.geteuid(), ROOT.stat().st_uid}
    for path in (state, state.parent, state.parent.parent):
        info = path.lstat()
        others = info.st_mode & 0o002 or (info.st_mode & 0o020 and not _private_group(info))
        if info.st_uid not in mine or others or path.is_symlink():
            raise KilnError(f"another user can write {path}")


def _private_group(info: os.stat_result) -> bool:
    """Whether nobody but the owner is in a file's group, as where each user has one of their own.

    A directory service may list no users: then the group counts as the owner's only by its number.
    """
    try:
        owner = pwd.getpwuid(info.st_uid)
        members = set(grp.getgrgid(info.st_gid).gr_mem)
    except KeyError:
        return False
    members |= {user.pw_name for user in pwd.getpwall() if user.pw_gid == info.st_gid}
    return owner.pw_gid == info.st_gid and members <= {owner.pw_name}


def _fields(data: Any, state: Path) -> dict[str, Any]:
    """The fields of a run's state. Raises KilnError if one of them is not what a run writes."""
    if not isinstance(data, dict):
        raise KilnError("it is not a mapping")
    for name, form in _FORMS.items():
        if name in data and not (name == "place" and data[name] is None):
            form.required(data[name], f"`{name}`")
    missing = {"run_id", "target", "place", "region", "amis"} - data.keys()
    unknown = data.keys() - {*_FORMS, "where", "amis"}
    if missing or unknown:
        raise KilnError(f"its fields are wrong: {', '.join(sorted(map(str, missing | unknown)))}")
    if data["run_id"] != state.parent.name:
        raise KilnError(f"`run_id` {data['run_id']} is not the name of its folder")
    if not isinstance(data["amis"], bool) or not isinstance(data.get("where", ""), str):
        raise KilnError("`amis` is not true or false, or `where` is not text")
    return data


_FORMS = {
    "run_id": vocabulary.RUN_ID,
    "target": vocabulary.TARGET,
    "place": vocabulary.ACCOUNT_OR_ENDPOINT,
    "region": vocabulary.REGION,
}


def _alive(run_id: str, lock: Path) -> bool:
    with lock.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            return f"run {run_id}," in handle.read()
    return False


def git_commit() -> str:
    """The checkout's commit, with `-dirty` if tracked files differ; `unknown` without git."""
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if changed else commit


def _git(*arguments: str) -> str:
    # The lab runs as root, and git refuses a checkout that another user owns.
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
