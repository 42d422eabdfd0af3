"""The record of a run in progress: facts are added, and it is written however the run ends.

Everything that a run creates carries its id and is removed at its end, except a finished AMI.
(`kill -9` leaves resources behind: the next run in this checkout removes them.)
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace

from kiln.base.errors import KilnError, operation_failed
from kiln.base.progress import Progress
from kiln.base.stopping import Stop, StoppedError
from kiln.base.times import now
from kiln.cloud import clean_up
from kiln.cloud.access import forget_key
from kiln.cloud.capacity import Try
from kiln.cloud.clean_up import Removal
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.pipeline import kept_records, record, report, shared_records
from kiln.pipeline.failure import ProvisionerError
from kiln.pipeline.record import Record
from kiln.pipeline.shared_records import Shelf


class Draft:
    """A run's record as far as it is known. `record` is replaced by `dataclasses.replace`, whose
    keywords mypy checks, and never changed."""

    def __init__(
        self,
        first: Record,
        run: Run,
        target: Target,
        progress: Progress,
        stop: Stop,
        shelf: Shelf | None = None,
    ) -> None:
        self.record = first
        self.run = run
        self.target = target
        self.progress = progress
        self.stop = stop
        # Where the record is kept for other machines.
        self.shelf = shelf
        # The ids of the instances of the run, as they are launched.
        self.launched: list[str] = []
        # What the clean-up leaves alone: the build instance of `--on-error keep`, its groups.
        self.kept: tuple[str, ...] = ()
        # Whether Packer was killed: what it was asking EC2 for may appear after the clean-up.
        self.cut_short = False

    def tried(self, launch: Try) -> None:
        """Note a launch that EC2 was asked for."""
        self.record = replace(self.record, tries=(*self.record.tries, launch))

    def write(self) -> None:
        """Write the record and its report. Raises OSError if the disk refuses."""
        self.record = replace(self.record, finished=now(), seconds=dict(self.progress.seconds))
        record.write_record(self.run, self.record)
        report.write_report(self.run.folder / "report.html", self.record, self._before)

    def end(self) -> None:
        """Write the record as it stays, here and where other machines find it.

        An AMI does not become worse by a record that only this machine has: `publish` keeps it
        before a channel moves. Raises OSError if the disk refuses.
        """
        self.write()
        if self.shelf:
            try:
                shared_records.keep_record(self.shelf, self.record)
            except KilnError as error:
                self.progress.say(str(error))

    @functools.cached_property
    def _before(self) -> Record | None:
        """The row's build before this one, of which this folder has a record."""
        return kept_records.build_before(self.record) if self.record.kind == "build" else None


@contextlib.contextmanager
def cleaned_up(draft: Draft, *, half_made: bool) -> Iterator[None]:
    """However the block ends, remove the run's resources and write the record of a failure.

    `half_made`: if the block fails, the run's own AMI is removed as well.
    Raises KilnError (exit status 1) if the run was interrupted, saying what was removed.
    """
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, StoppedError | KeyboardInterrupt)
        draft.record = replace(draft.record, error="interrupted" if interrupted else str(error))
        if isinstance(error, ProvisionerError):
            draft.record = replace(draft.record, failure=error.failure)
        removal = remove_resources(draft, amis=half_made)
        _note_ami_after_failure(draft, half_made)
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


def _note_ami_after_failure(draft: Draft, half_made: bool) -> None:
    """Note that an AMI without a verdict was removed, or is kept as unverified."""
    draft.record = replace(draft.record, status="failed")
    if half_made:
        draft.record = replace(draft.record, ami_id=None, amis={})
    elif draft.record.ami_id:
        draft.record = replace(draft.record, status="unverified")
        if draft.record.kind == "build":
            draft.progress.say(f"kept {draft.record.ami_id}, which is not verified (--keep)")


def _interrupted(draft: Draft, removal: Removal) -> KilnError:
    nothing = "nothing" if draft.record.left else "nothing had been created"
    hint = f"cleaned up: {', '.join(removal.removed) or nothing}"
    if draft.record.left:
        hint += f"\nleft: {', '.join(draft.record.left)}"
    return operation_failed(f"{draft.record.recipe['name']}: interrupted", hint=hint)


def remove_resources(draft: Draft, *, amis: bool) -> Removal:
    """Remove the run's resources; those that remain go into `left` of its record."""
    run, target, progress = draft.run, draft.target, draft.progress
    progress.needs_no_reader()
    if not amis:
        with contextlib.suppress(OSError):  # a full disk must not prevent the clean-up
            run.keeps_its_ami()
    with progress.stage("clean-up") as stage:
        stage.waits_for("EC2 to remove what the run created")
        gone = target.gone()
        again = draft.stop.again
        removal = Removal(failures=[gone], left=[f"unknown: {gone}"])
        if not gone:
            removal = clean_up.remove(
                run.id,
                target,
                amis=amis,
                launched=draft.launched,
                kept=draft.kept,
                patient=not again,
                hurried=lambda: draft.stop.again > again,
            )
        stage.note = ", ".join(removal.removed)
    if not draft.kept:
        forget_key(run)
    draft.record = replace(draft.record, left=tuple(removal.left))
    if gone:
        progress.say("the next build in this checkout and this lab removes what is left")
    elif removal.failures:
        progress.say("\n".join(dict.fromkeys(removal.failures)))
        progress.say(f"left: {', '.join(removal.left) or 'nothing'}")
        progress.say("the next build in this checkout tries again to remove it")
    else:
        if removal.left:
            progress.say(f"left: {', '.join(removal.left)}")
        if not draft.cut_short:
            run.settled()
    return removal
