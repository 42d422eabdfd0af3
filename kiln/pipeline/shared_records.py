"""Records that machines share: `s3://BUCKET/runs/ROW/RUN/record.json`.

Each run writes its record there at its end, and what reads records fetches those that this
checkout lacks into `build/`, where they stand as if they had been made here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.paths import build_dir
from kiln.cloud import aws
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.pipeline import kept_records
from kiln.pipeline import record as records
from kiln.pipeline.record import Record

_FOLDER = "runs"
# Of a row: what was built before concerns nobody.
_NEWEST = 20
# In search of an AMI's id, over all rows.
_SEARCHED = 200
# Bytes. The record of an image with all its packages has less than one million.
_LARGEST = 8_000_000
_AT_ONCE = 16


@dataclass(frozen=True)
class Shelf:
    """A bucket of records, and how to reach it."""

    bucket: str
    target: Target

    def key_of(self, row: str, run_id: str) -> str:
        """Where a run's record is in the bucket."""
        return f"{_FOLDER}/{row}/{run_id}/{_NAME}"

    def url_of(self, row: str, run_id: str) -> str:
        """The same for a person."""
        return f"s3://{self.bucket}/{self.key_of(row, run_id)}"


_NAME = "record.json"


def shelf_of(bucket: str | None, target: Target) -> Shelf | None:
    """The bucket that the settings name, as the target has it; None without one.

    A lab has only the buckets that somebody made in it, and builds there without one as well.
    """
    if bucket is None:
        return None
    if not target.bills and (target.gone() or not _is_there(bucket, target)):
        return None
    return Shelf(bucket, target)


def _is_there(bucket: str, target: Target) -> bool:
    from botocore.exceptions import ClientError

    try:
        aws.s3(target).head_bucket(Bucket=bucket)
    except ClientError:
        return False
    return True


def keep_record(shelf: Shelf, record: Record) -> None:
    """Write a run's record to the bucket. Raises KilnError (exit status 1) if S3 refuses."""
    row = str(record.recipe["name"])
    with aws.explained(f"the record could not be kept at {shelf.url_of(row, record.run_id)}"):
        aws.s3(shelf.target).put_object(
            Bucket=shelf.bucket,
            Key=shelf.key_of(row, record.run_id),
            Body=records.as_text(record).encode(),
            ContentType="application/json",
        )


def kept_runs(shelf: Shelf, row: str | None = None) -> list[tuple[str, str]]:
    """Row and run id of each record in the bucket, of one row or of all, newest first.

    Other objects in the bucket are ignored. Raises KilnError (exit status 1) if S3 refuses.
    """
    prefix = f"{_FOLDER}/{row}/" if row else f"{_FOLDER}/"
    with aws.explained(f"the records in s3://{shelf.bucket}/{prefix} could not be listed"):
        pages = aws.s3(shelf.target).get_paginator("list_objects_v2")
        keys = [
            str(entry["Key"])
            for page in pages.paginate(Bucket=shelf.bucket, Prefix=prefix)
            for entry in page.get("Contents", [])
        ]
    split_keys = (key.split("/") for key in keys)
    kept = [
        (parts[1], parts[2])
        for parts in split_keys
        if len(parts) == 4
        and parts[3] == _NAME
        and vocabulary.RECIPE_NAME.fits(parts[1])
        and vocabulary.RUN_ID.fits(parts[2])
    ]
    return sorted(kept, key=lambda kept_run: kept_run[1], reverse=True)


Refused = Callable[[str], None]


def bring_row(shelf: Shelf, row: str, refused: Refused, newest: int = _NEWEST) -> set[str]:
    """Fetch the newest records of a row that are not here; the ids of all that the bucket has.

    `refused` gets the reason why a file there is not used. Raises KilnError (exit status 1) if S3
    refuses.
    """
    kept = kept_runs(shelf, row)
    _bring(shelf, kept[:newest], refused)
    return {run_id for _, run_id in kept}


def bring_newest(shelf: Shelf, rows: Sequence[str], refused: Refused, each: int = 1) -> None:
    """Fetch the newest records of each of these rows that are not here, with one listing."""
    kept = kept_runs(shelf)
    for row in rows:
        _bring(shelf, [kept_run for kept_run in kept if kept_run[0] == row][:each], refused)


def bring_runs(shelf: Shelf, runs: Mapping[str, str], refused: Refused) -> None:
    """Fetch the records of these runs (row → run id) that the bucket has.

    One request for each, whatever else is there. Raises KilnError (exit status 1) if S3 refuses.
    """
    _bring(shelf, list(runs.items()), refused)


def bring_named(shelf: Shelf, name: str, refused: Refused) -> None:
    """Fetch what may be the record of this name: a run's id, a row, an AMI's id."""
    if vocabulary.AMI_ID.fits(name):
        kept = kept_runs(shelf)[:_SEARCHED]
        for first in range(0, len(kept), _AT_ONCE):
            batch = kept[first : first + _AT_ONCE]
            _bring(shelf, batch, refused)
            if any(name in _amis_of(row, run_id) for row, run_id in batch):
                return
    elif vocabulary.RUN_ID.fits(name):
        _bring(shelf, [kept_run for kept_run in kept_runs(shelf) if kept_run[1] == name], refused)
    elif vocabulary.RECIPE_NAME.fits(name):
        bring_row(shelf, name, refused)


def _amis_of(row: str, run_id: str) -> set[str | None]:
    return {
        ami_id
        for record in islice(
            (record for record in kept_records.all_of(row) if record.run_id == run_id), 1
        )
        for ami_id in (record.ami_id, *record.amis.values())
    }


def _bring(shelf: Shelf, wanted: Sequence[tuple[str, str]], refused: Refused) -> None:
    lacking = [run for run in wanted if not _here(*run).record.exists()]
    if not lacking:
        return
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(lacking))) as pool:
        fetched = pool.map(lambda run: _fetched(shelf, *run), lacking)
        for (row, run_id), record in zip(lacking, fetched, strict=True):
            if record is None:
                continue
            if isinstance(record, KilnError):
                refused(f"{record.message}; it is left out")
                continue
            run = _here(row, run_id)
            run.folder.mkdir(parents=True, exist_ok=True)
            # The folder that it names is another machine's.
            records.write_record(run, replace(record, folder=str(run.folder)))


def _here(row: str, run_id: str) -> Run:
    return Run(run_id, row, build_dir() / row / run_id)


def _fetched(shelf: Shelf, row: str, run_id: str) -> Record | KilnError | None:
    """A record in the bucket, why the file is not the record of that run, or None without one."""
    url, key = shelf.url_of(row, run_id), shelf.key_of(row, run_id)
    s3 = aws.s3(shelf.target)
    with aws.explained(f"{url} could not be read"):
        try:
            answer = s3.get_object(Bucket=shelf.bucket, Key=key)
        except s3.exceptions.NoSuchKey:
            return None
        with answer["Body"] as body:
            text = body.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        return KilnError(f"{url}: not a record of a run: larger than {_LARGEST} bytes")
    try:
        record = records.parse_record(records.mapping(text, url), url)
    except KilnError as error:
        return error
    for name, value, expected in (
        ("run_id", record.run_id, run_id),
        ("recipe.name", record.recipe.get("name"), row),
    ):
        if value != expected:
            return KilnError(f"{url}: `{name}` is {vocabulary.shown(value)}: another run's record")
    return record
