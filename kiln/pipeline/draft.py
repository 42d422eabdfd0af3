"""The record of a run in progress: facts are added, and it is written however the run ends.

Everything that a run creates carries its id and is removed at its end, except a finished AMI.
(`kill -9` leaves resources behind: the next run in this checkout removes them.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from kiln.base.errors import OPERATION_FAILED, KilnError, Place, operation_failed
from kiln.base.processes import Stop, StoppedError
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.base.vocabulary import now
from kiln.cloud import cleanup, runs
from kiln.cloud.cleanup import Removal
from kiln.cloud.network import Try, forget_key
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.pipeline import record as recording
from kiln.pipeline import report
from kiln.pipeline.record import Failure, Record
from kiln.pipeline.records import RecordsBucket


class ProvisionerError(KilnError):
    """A bake that a provisioner ended; exit status 1."""

    def __init__(self, recipe: str, failure: Failure, *, log: str) -> None:
        super().__init__(
            f"{recipe}: packer build failed in {failure.component}: {failure.message}",
            hint="\n  ".join([*failure.lines(), f"the whole log: {log}"]),
            exit_status=OPERATION_FAILED,
            place=Place(failure.script, failure.line),
        )
        self.failure = failure


@dataclass
class Draft:
    """A run's record as far as it is known, and what the run has launched."""

    record: Record
    run: Run
    target: Target
    progress: Progress
    stop: Stop
    # Where the record is kept for other machines.
    bucket: RecordsBucket | None = None
    # The ids of the instances of the run, as they are launched.
    launched: list[str] = field(default_factory=list)
    # What the clean-up leaves alone: the build instance of `--on-error keep`, its groups.
    kept: tuple[str, ...] = ()
    # Whether the record still has the recipe of a row in the place of the image's own.
    recipe_unread: bool = False
    # Whether Packer was killed: what it was asking EC2 for may appear after the clean-up.
    cut_short: bool = False

    def note(self, **facts: Any) -> None:
        """Note facts of the record, by its fields."""
        self.record = replace(self.record, **facts)

    def tried(self, launch: Try) -> None:
        """Note a launch that EC2 was asked for."""
        self.note(tries=(*self.record.tries, launch))

    def write(self) -> None:
        """Write the record and its report, once its recipe is known. Raises OSError if the disk
        refuses."""
        if self.recipe_unread:
            return
        self.note(finished=now(), seconds=dict(self.progress.seconds))
        recording.write_record(self.run, self.record)
        report.write_report(self.run.folder / "report.html", self.record)

    def end(self) -> None:
        """Write the record as it stays, here and where other machines find it.

        An AMI does not become worse by a record that only this machine has: `publish` keeps it
        before a channel moves. Raises OSError if the disk refuses.
        """
        self.write()
        if self.bucket and not self.recipe_unread:
            try:
                self.bucket.keep(self.record)
            except KilnError as error:
                self.progress.say(str(error))


@contextlib.contextmanager
def recorded(
    name: str,
    recipe: Recipe,
    target: Target,
    progress: Progress,
    stop: Stop,
    bucket: RecordsBucket | None,
    *,
    delete_ami_on_failure: bool,
    **facts: Any,
) -> Iterator[Draft]:
    """A run, in the folder of a recipe's name: begun, watched, cleaned up and recorded however the
    block ends. `facts` of the record are known before."""
    with runs.started(name, target) as run, runs.watching(run.id, target, stop):
        first = Record(
            run_id=run.id,
            recipe=recipe,
            folder=str(run.folder),
            started=now(),
            git_commit=runs.git_commit(),
            **{**target.record_fields(recipe.arch), **facts},
        )
        draft = Draft(first, run, target, progress, stop, bucket)
        with cleaned_up(draft, delete_ami_on_failure=delete_ami_on_failure):
            yield draft
        draft.end()


@contextlib.contextmanager
def cleaned_up(draft: Draft, *, delete_ami_on_failure: bool) -> Iterator[None]:
    """However the block ends, remove the run's resources and write the record of a failure."""
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, StoppedError | KeyboardInterrupt)
        draft.note(error="interrupted" if interrupted else str(error), status="failed")
        if isinstance(error, ProvisionerError):
            draft.note(failure=error.failure)
        removal = remove_resources(draft, amis=delete_ami_on_failure)
        if delete_ami_on_failure:
            draft.note(ami_id=None, amis={})
        elif draft.record.ami_id:
            draft.note(status="unverified")
            if draft.record.kind == "build":
                draft.progress.say(f"kept {draft.record.ami_id}, which is not verified (--keep)")
        try:
            # A person who stops a run does not wait for S3 as well.
            draft.write() if interrupted else draft.end()
        except OSError as unwritten:
            draft.progress.say(
                f"the record of run {draft.run.id} could not be written: {unwritten}"
            )
        if interrupted:
            raise _interrupted(draft, removal) from None
        raise
    else:
        remove_resources(draft, amis=False)


def _interrupted(draft: Draft, removal: Removal) -> KilnError:
    nothing = "nothing" if draft.record.left else "nothing had been created"
    hint = f"cleaned up: {', '.join(removal.removed) or nothing}"
    if draft.record.left:
        hint += f"\nleft: {', '.join(draft.record.left)}"
    return operation_failed(f"{draft.run.recipe}: interrupted", hint=hint)


def remove_resources(draft: Draft, *, amis: bool) -> Removal:
    """Remove the run's resources; those that remain go into `left` of its record."""
    run, target, progress = draft.run, draft.target, draft.progress
    progress.tolerate_closed_output()
    if not amis:
        # A full disk, or a state that somebody has damaged, must not prevent the clean-up.
        with contextlib.suppress(OSError, KilnError):
            run.keep_amis()
    with progress.stage("clean-up") as stage:
        stage.waits_for("EC2 to remove what the run created")
        if gone := target.hooks.gone():
            removal = Removal(failures=[gone.message], left=[f"unknown: {gone.message}"])
        else:
            again = draft.stop.again
            removal = cleanup.remove(
                run.id,
                target,
                amis=amis,
                launched=draft.launched,
                kept=draft.kept,
                patient=not again,
                hurried=lambda: draft.stop.again > again,
            )
        stage.note = f"deleted {removal.counts}" if removal.removed else ""
    if not draft.kept:
        forget_key(run)
    draft.note(left=tuple(removal.left))
    if removal.failures:
        progress.say("\n".join(dict.fromkeys(removal.failures)))
    if removal.left:
        progress.say(f"left: {', '.join(removal.left)}")
    if removal.failures:
        progress.say("the next build in this checkout, at this target, removes what is left")
    elif not draft.cut_short:
        run.mark_clean()
    return removal
