"""The records in the build folder: the newest of a row, and that of a run or an AMI."""

from __future__ import annotations

import contextlib
from pathlib import Path

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.paths import build_dir
from kiln.pipeline.record import Record, read_record

# The folder of `verify --host` and `--instance`, in the place of a row's.
RUNNING_MACHINES = "running-machines"


def last(recipe: str) -> Record | None:
    """The record of a recipe's newest run that judged its AMI, or failed to make one; None if there
    is none here."""
    return next((record for record in all_of(recipe) if not record.says_nothing), None)


def find_record(name: str) -> Record:
    """The record of a build: by its file, AMI id, run id or AMI name (then the newest image). Of an
    AMI that was not built here, it is that of its verification.

    Raises KilnError (exit status 2) if there is none here, or if the file is not a record.
    """
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        return read_record(path)
    folders = sorted({path.parent.parent.name for path in build_dir().glob("*/*/record.json")})
    rows = [folder for folder in folders if folder != RUNNING_MACHINES]
    records: list[Record] = []
    for folder in folders:
        for record in all_of(folder):
            names = {record.run_id, record.ami_id, *record.amis.values()}
            # A row's name means its newest build with an AMI.
            if name in names or (name == folder and folder in rows and record.versions):
                if record.kind == "build":
                    return record
                records.append(record)
    if records:
        return records[0]
    raise KilnError(
        f"{name}: no record of such a build in {build_dir()}",
        hint=did_you_mean(name, rows) if rows else "./invoke build writes one",
    )


def of_ami(ami_id: str) -> Record | None:
    """The record of the build that made an AMI; None if it was not built in this checkout."""
    for folder in sorted(build_dir().glob("*")):
        for record in all_of(folder.name):
            if record.kind == "build" and ami_id in {record.ami_id, *record.amis.values()}:
                return record
    return None


def all_of(recipe: str) -> list[Record]:
    """The records of a recipe's runs, newest first; a file that is not a record is left out."""
    records = []
    for path in sorted((build_dir() / recipe).glob("*/record.json"), reverse=True):
        with contextlib.suppress(OSError, KilnError):
            records.append(read_record(path))
    return records


# Records that are read in search of an earlier build.
_SEARCHED = 100


def build_before(this: Record) -> Record | None:
    """The newest earlier build of the same line on the same target that has a version-info, among
    the newest records here; None if there is none.

    A recipe's name has its versions, so the build before may have another name.
    """
    paths = [path for path in build_dir().glob("*/*/record.json") if path.parent.name < this.run_id]
    for path in sorted(paths, key=lambda path: path.parent.name, reverse=True)[:_SEARCHED]:
        with contextlib.suppress(OSError, KilnError):
            other = read_record(path)
            same = (other.kind, other.target) == ("build", this.target)
            if same and other.versions and other.recipe.get("line") == this.recipe.get("line"):
                return other
    return None
