"""Records that are kept: in the build folder, and in a bucket that machines share.

In the bucket a record is `runs/ROW/RUN/record.json`. Each run writes its record there at its end,
and what reads records fetches those that this checkout lacks into `build/`, where they stand as if
they had been made here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from kiln.base import vocabulary
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.paths import build_dir
from kiln.cloud import aws
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.pipeline import record as recording
from kiln.pipeline.record import Record, read_record

# The folder of `verify --host` and `--instance`, in the place of a row's.
RUNNING_MACHINES = "running-machines"

_FOLDER, _NAME = "runs", "record.json"
# Of a row: what was built before concerns nobody.
_NEWEST = 20
# In search of an AMI's id.
_SEARCHED = 200
# Bytes. The record of an image with all its packages has less than one million.
_LARGEST = 8_000_000
_AT_ONCE = 16


def last(recipe: str) -> Record | None:
    """The record of a recipe's newest run that judged its AMI, or failed to make one."""
    return next((record for record in all_of(recipe) if not record.is_inconclusive), None)


def find_record(name: str) -> Record:
    """The record of a build: by its file, AMI id, run id or AMI name (then the newest image). Of an
    AMI that was not built here, it is that of its verification."""
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        return read_record(path)
    folders = sorted({path.parent.parent.name for path in build_dir().glob(f"*/*/{_NAME}")})
    unread: list[KilnError] = []
    rows = [folder for folder in folders if folder != RUNNING_MACHINES]
    if name in rows:
        # A row's name means its newest build with an AMI.
        found = [record for record in all_of(name, unread) if record.versions]
    else:
        every = (record for row in folders for record in all_of(row, unread))
        found = [record for record in every if name in _names(record)]
    builds = [record for record in found if record.kind == "build"]
    if found:
        return (builds or found)[0]
    hint = did_you_mean(name, rows) if rows else "./invoke build writes one"
    if unread:
        hint = f"{len(unread)} records cannot be read, such as {unread[0].message}"
    raise KilnError(f"no build record of {name} in {build_dir()}", hint=hint)


def _names(record: Record) -> set[str | None]:
    return {record.run_id, record.ami_id, *record.amis.values()}


def newest_of_ami(ami_id: str) -> Record | None:
    """The record of the build that made an AMI; None if it was not built in this checkout."""
    every = (record for folder in sorted(build_dir().glob("*")) for record in all_of(folder.name))
    builds = (record for record in every if record.kind == "build")
    return next((record for record in builds if ami_id in _names(record)), None)


def all_of(recipe: str, unread: list[KilnError] | None = None) -> list[Record]:
    """The records of a recipe's runs, newest first; `unread` gets why a file is left out."""
    return _read(sorted((build_dir() / recipe).glob(f"*/{_NAME}"), reverse=True), unread)


def _read(paths: Sequence[Path], unread: list[KilnError] | None = None) -> list[Record]:
    records = []
    for path in paths:
        try:
            records.append(read_record(path))
        except KilnError as error:  # noqa: PERF203
            if unread is not None:
                unread.append(error)
    return records


Refused = Callable[[str], None]


@dataclass(frozen=True)
class RecordsBucket:
    """A bucket of records, and how to reach it."""

    name: str
    target: Target

    def key(self, row: str, run_id: str) -> str:
        """Return the key of a run's record in the bucket."""
        return f"{_FOLDER}/{row}/{run_id}/{_NAME}"

    def url(self, row: str, run_id: str) -> str:
        """The s3:// URL of a run's record."""
        return f"s3://{self.name}/{self.key(row, run_id)}"

    def keep(self, record: Record) -> None:
        """Write a run's record to the bucket."""
        row = record.recipe.name
        with aws.explained(f"the record could not be kept at {self.url(row, record.run_id)}"):
            aws.s3(self.target).put_object(
                Bucket=self.name,
                Key=self.key(row, record.run_id),
                Body=recording.as_text(record).encode(),
                ContentType="application/json",
            )

    def runs(self, row: str | None = None) -> list[tuple[str, str]]:
        """Row and run id of each record in the bucket, of one row or of all, newest first.

        Other objects in the bucket are ignored.
        """
        prefix = f"{_FOLDER}/{row}/" if row else f"{_FOLDER}/"
        with aws.explained(f"the records in s3://{self.name}/{prefix} could not be listed"):
            s3, query = aws.s3(self.target), {"Bucket": self.name, "Prefix": prefix}
            found = aws.paginated(s3, "list_objects_v2", "Contents[].Key", **query)
            keys = [str(key).split("/") for key in found]
        kept = [
            (row, run_id)
            for _, row, run_id, name in (parts for parts in keys if len(parts) == 4)
            if (name, vocabulary.RECIPE_NAME.fits(row), vocabulary.RUN_ID.fits(run_id))
            == (_NAME, True, True)
        ]
        return sorted(kept, key=lambda kept_run: kept_run[1], reverse=True)

    def fetch_row(self, row: str, refused: Refused, newest: int = _NEWEST) -> set[str]:
        """Fetch the newest records of a row that are not here; the ids of all that the bucket has.

        `refused` gets the reason why a file there is not used.
        """
        kept = self.runs(row)
        self.fetch(kept[:newest], refused)
        return {run_id for _, run_id in kept}

    def fetch_newest(self, rows: Sequence[str], refused: Refused, each: int = 1) -> None:
        """Fetch the newest records of each of these rows that are not here, with one listing."""
        kept = self.runs()
        for row in rows:
            self.fetch([kept_run for kept_run in kept if kept_run[0] == row][:each], refused)

    def fetch_named(self, name: str, refused: Refused) -> None:
        """Fetch what may be the record of this name: a run's id, a row, an AMI's id."""
        if vocabulary.AMI_ID.fits(name):
            kept = self.runs()[:_SEARCHED]
            for first in range(0, len(kept), _AT_ONCE):
                batch = kept[first : first + _AT_ONCE]
                self.fetch(batch, refused)
                here = _read([_run(*run).record for run in batch])
                if any(name in _names(record) for record in here):
                    return
        elif vocabulary.RUN_ID.fits(name):
            self.fetch([kept_run for kept_run in self.runs() if kept_run[1] == name], refused)
        elif vocabulary.RECIPE_NAME.fits(name):
            self.fetch_row(name, refused)

    def fetch(self, wanted: Sequence[tuple[str, str]], refused: Refused) -> None:
        """Fetch the records of these rows and runs that are not here."""
        lacking = [run for run in wanted if not _run(*run).record.exists()]
        if not lacking:
            return
        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(lacking))) as pool:
            fetched = pool.map(lambda run: self._fetched(*run), lacking)
            for (row, run_id), record in zip(lacking, fetched, strict=True):
                if record is None:
                    continue
                if isinstance(record, KilnError):
                    refused(f"{record.message}; it is left out")
                    continue
                run = _run(row, run_id)
                run.folder.mkdir(parents=True, exist_ok=True)
                # The folder that it names is another machine's.
                recording.write_record(run, replace(record, folder=str(run.folder)))

    def _fetched(self, row: str, run_id: str) -> Record | KilnError | None:
        """A record in the bucket, why the file is not that run's record, or None without one."""
        url = self.url(row, run_id)
        s3 = aws.s3(self.target)
        with aws.explained(f"{url} could not be read"):
            try:
                answer = s3.get_object(Bucket=self.name, Key=self.key(row, run_id))
            except s3.exceptions.NoSuchKey:
                return None
            with answer["Body"] as body:
                text = body.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            return KilnError(f"{url}: not a record of a run: larger than {_LARGEST} bytes")
        try:
            record = recording.parse_record(recording.mapping(text, url), url)
        except KilnError as error:
            return error
        if (record.recipe.name, record.run_id) != (row, run_id):
            return KilnError(f"{url}: another run's record")
        return record


def _run(row: str, run_id: str) -> Run:
    return Run(run_id, row, build_dir() / row / run_id)


def bucket_at(bucket: str | None, target: Target) -> RecordsBucket | None:
    """The bucket that the settings name, as the target has it; None without one.

    A target that bills nothing (the lab) has only the buckets that somebody made in it, and builds
    there without one as well.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    if bucket is None:
        return None
    if not target.bills:
        try:
            aws.s3(target).head_bucket(Bucket=bucket)
        except (BotoCoreError, ClientError, KilnError):
            return None
    return RecordsBucket(bucket, target)
