"""A run: one build or verification, with its id, folder, lock and watch."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

from pydantic import BaseModel, ConfigDict, ValidationError

from kiln.base import processes, vocabulary
from kiln.base.errors import KilnError, first_mistake, operation_failed
from kiln.base.paths import ROOT, build_dir, remove_short_path
from kiln.base.processes import Stop
from kiln.base.progress import Progress
from kiln.base.tags import RUN_ID
from kiln.base.vocabulary import as_stamp, utc_now
from kiln.cloud import aws, cleanup
from kiln.cloud.target import Target

# Seconds between two questions of a watch, at least.
_EVERY = 3.0
# Permissions take effect in EC2 after a moment: only this many refusals in a row count.
_REFUSALS = 2
# Seconds for Packer to terminate its instance before it is killed: it would wait for an answer that
# does not come.
_GRACE = 10.0
_LOCK = ".lock"


class State(BaseModel):
    """State of a run, with which a later one cleans up after a crash: run.json.

    `amis`: the run's AMI is incomplete and is removed too.
    """

    # What it names is going to be removed.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    run_id: Annotated[str, vocabulary.RUN_ID]
    target: Annotated[str, vocabulary.TARGET]
    place: Annotated[str, vocabulary.ACCOUNT_OR_ENDPOINT] | None
    where: str
    region: Annotated[str, vocabulary.REGION]
    amis: bool = True


@dataclass(frozen=True)
class Run:
    """One run. Everything it creates is tagged with its `id` (`kiln:run-id`)."""

    id: str
    recipe: str
    folder: Path

    @property
    def record(self) -> Path:
        """The file of its record."""
        return self.folder / "record.json"

    @property
    def state(self) -> Path:
        """The file from which a later run cleans up after a crash."""
        return self.folder / "run.json"

    def keep_amis(self) -> None:
        """Make a later clean-up leave the run's AMI alone."""
        self.write_state(_read_state(self.state).model_copy(update={"amis": False}))

    def write_state(self, state: State) -> None:
        """Write the state; other processes, which look for dead runs, find it whole."""
        fresh = self.state.with_name(f".run.json.{os.getpid()}")
        fresh.touch(mode=0o644)
        fresh.write_text(state.model_dump_json())
        fresh.replace(self.state)

    def mark_clean(self) -> None:
        """Record that nothing of the run remains to be removed."""
        self.state.unlink(missing_ok=True)


def new_id() -> str:
    """An id for a run that begins now: 20260801T120000Z-1a2b."""
    return f"{as_stamp(utc_now())}-{secrets.token_hex(2)}"


@contextlib.contextmanager
def started(recipe: str, target: Target) -> Iterator[Run]:
    """A new run of a recipe, under the recipe's lock.

    Until it is settled, a later build considers it crashed and removes resources with its id.
    """
    vocabulary.RECIPE_NAME.required(recipe, "the recipe's name")
    parent = build_dir() / recipe
    # What a later run removes is written here: nobody else may write it, whatever the umask says.
    build_dir().mkdir(mode=0o755, parents=True, exist_ok=True)
    parent.mkdir(mode=0o755, exist_ok=True)
    with contextlib.ExitStack() as locks:
        of_recipe = locks.enter_context((parent / _LOCK).open("a+"))
        _lock(of_recipe, recipe)
        run_id = new_id()
        run = Run(run_id, recipe, parent / run_id)
        of_recipe.truncate(0)
        of_recipe.write(f"run {run.id}, process {os.getpid()}")
        of_recipe.flush()
        run.folder.mkdir(mode=0o755)
        # Held before there is a state, so whoever looks at one can tell whether its run is alive.
        fcntl.flock(locks.enter_context((run.folder / _LOCK).open("w")), fcntl.LOCK_EX)
        state = State(
            run_id=run.id,
            target=target.kind,
            place=target.place,
            where=target.where,
            region=target.region,
        )
        try:
            run.write_state(state)
        except OSError:
            shutil.rmtree(run.folder)
            raise
        with target.hooks.in_use(run.id, recipe):
            yield run


def _lock(lock: IO[str], recipe: str) -> None:
    """Take a recipe's lock, or name the run that has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        raise operation_failed(
            f"{recipe} is being built already: {lock.read().strip()}",
            hint="wait for it, or stop it with Ctrl-C: it cleans up after itself",
        ) from None


def _is_alive(folder: Path) -> bool:
    """Return True if the process of a run holds its lock."""
    with (folder / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _require_own(state: Path) -> None:
    """Refuse a run's state that another user wrote, or could have."""
    mine = {0, os.geteuid(), ROOT.stat().st_uid}
    for path in (state, state.parent, state.parent.parent):
        info = path.lstat()
        if info.st_uid not in mine or info.st_mode & 0o022 or path.is_symlink():
            raise KilnError(f"another user can write {path}")


def _read_state(path: Path) -> State:
    try:
        state = State.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise KilnError(f"not the state of a run: {first_mistake(error)}") from None
    if state.run_id != path.parent.name:
        raise KilnError(f"`run_id` {state.run_id} is not the name of its folder")
    return state


def dead(refused: Callable[[str], None]) -> list[tuple[Run, State]]:
    """The runs in this checkout that crashed: run.json exists and no process holds the lock.

    What it names is going to be removed, so `refused` gets the reason for each file that no run
    can have written.
    """
    runs = []
    for path in sorted(build_dir().glob("*/*/run.json")):
        state = _state_of_dead(path, refused)
        if state:
            runs.append((Run(state.run_id, path.parent.parent.name, path.parent), state))
    return runs


def _state_of_dead(path: Path, refused: Callable[[str], None]) -> State | None:
    """The state of a run, if it crashed."""
    try:
        _require_own(path)
        state = _read_state(path)
        return None if _is_alive(path.parent) else state
    except FileNotFoundError:  # its run has ended meanwhile
        return None
    except (KilnError, OSError) as error:
        refused(f"{path}: {error}; nothing is removed for it")
        return None


def clean_dead_runs(target: Target, progress: Progress) -> None:
    """Remove what crashed runs of this checkout left at this target, in any region.

    Runs elsewhere (another account, another lab) are only named: a build there removes them.
    """
    for run, state in dead(progress.say):
        if (state.target, state.place) != (target.kind, target.place):
            progress.say(f"run {run.id} has not cleaned up in {state.where}: a build there will")
            continue
        processes.end_processes(run.id)
        # Killed while it made or removed its folder, it left one that leads nowhere.
        remove_short_path(run.id)
        # Without `amis` the run was past its record.
        removal = cleanup.remove(run.id, target.in_region(state.region), amis=state.amis)
        shutil.rmtree(run.folder / "ssh", ignore_errors=True)
        if removal.removed:
            progress.say(f"run {run.id} had not cleaned up; removed {', '.join(removal.removed)}")
        if removal.failures:
            progress.say("\n".join(dict.fromkeys(removal.failures)))
        else:
            run.mark_clean()


def watching(
    run_id: str, target: Target, stop: Stop, *, every: float | None = None
) -> AbstractContextManager[None]:
    """While inside, give `stop` up as soon as EC2 cannot answer the run's questions any more.

    That is when the target is gone, or when EC2 refuses twice in a row with an error that asking
    again does not change, as with expired credentials. Packer's waiters go on for up to an hour:
    aws-sdk-go's end only at answers that they list
    (https://github.com/aws/aws-sdk-go/blob/v1.55.6/aws/request/waiter.go).
    """
    seconds = every or max(target.wait_seconds, _EVERY)

    def watch(over: threading.Event) -> None:
        refusals = 0
        while not over.wait(seconds) and not stop.is_given_up:
            if gone := target.hooks.gone():
                stop.give_up(gone, grace=0)
                return
            refused = _refusal(run_id, target)
            refusals = refusals + 1 if refused else 0
            if refused and refusals >= _REFUSALS:
                stop.give_up(refused, grace=_GRACE)

    # Not joined: a question without an answer may last a minute.
    return processes.beside(watch)


def _refusal(run_id: str, target: Target) -> KilnError | None:
    """The error, if EC2 refuses for good what Packer asks while it waits; None otherwise."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        aws.ec2(target).describe_instances(Filters=[{"Name": f"tag:{RUN_ID}", "Values": [run_id]}])
    except ClientError as error:
        if aws.is_permanent(error):
            return aws.as_error("EC2 refuses to answer this run", error)
    except (BotoCoreError, ResponseParserError):
        pass  # no connection, which may come back
    return None


def git_commit() -> str:
    """The checkout's commit, with `-dirty` if tracked files differ; `unknown` without git."""
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if changed else commit


def _git(*arguments: str) -> str:
    # With sudo, git refuses a checkout that another user owns.
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
