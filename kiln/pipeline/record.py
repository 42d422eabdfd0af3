"""The record of a run: what it made, from what, and the verdict.

The published JSON Schema is docs/record.schema.json (record_schema.py), docs/records.md explains
each key. Schema 2 is
written; records of schema 1 are converted when they are read.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.paths import build_dir
from kiln.cloud.runs import Run
from kiln.cloud.target import ParentAmi
from kiln.pipeline.ami_checks import Check, Verdict

SCHEMA = 2

Status = Literal["verified", "failed", "unverified"]


@dataclass(frozen=True)
class Checks:
    """The AMI checks of one instance: the count of each outcome, and each check."""

    passed: int
    failed: int
    skipped: int
    checks: tuple[Check, ...]

    @staticmethod
    def of(verdict: Verdict) -> Checks:
        """The checks of a verdict."""
        return Checks(
            verdict.count("passed"),
            verdict.count("failed"),
            verdict.count("skipped"),
            verdict.checks,
        )


@dataclass(frozen=True)
class Record:
    """One run: a build, or the verification of an existing AMI.

    `recipe` is the recipe as JSON and `versions` the image's version-info.json; record_schema.py
    describes both. `recipe_digest` and `input_digest` are SHA-256 as hex (see docs/records.md for
    what each promises). Times are UTC in ISO 8601; `seconds` maps a stage to its wall-clock
    seconds.
    """

    run_id: str
    kind: Literal["build", "verify"]
    status: Status
    recipe: dict[str, Any]
    target: str
    region: str
    started: str
    folder: str
    schema: int = SCHEMA
    recipe_digest: str | None = None
    input_digest: str | None = None
    recipe_from: str | None = None
    image_note: str = ""
    emulated: str | None = None
    source_ami: ParentAmi | None = None
    ami_id: str | None = None
    amis: dict[str, str] = field(default_factory=dict)
    instance_type: str | None = None
    verify_instance_type: str | None = None
    packer: str | None = None
    git_commit: str = "unknown"
    finished: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    checks: Checks | None = None
    versions: dict[str, Any] | None = None
    error: str | None = None
    left: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The record as plain data, `schema` first."""
        return {"schema": self.schema, **asdict(self)}


_ADAPTER = TypeAdapter(Record)


def write_record(run: Run, record: Record) -> None:
    """Write a run's record atomically."""
    fresh = run.record.with_suffix(".new")
    fresh.write_text(json.dumps(record.as_json(), indent=2) + "\n", encoding="utf-8")
    fresh.rename(run.record)


def last(recipe: str) -> Record | None:
    """The record of a recipe's newest run that has one; None if it was never built here."""
    return next(iter(all_of(recipe)), None)


def find_record(name: str) -> Record:
    """The record of a build: by its file, AMI id, run id or AMI name (then the newest image).

    Raises KilnError (exit status 2) if there is none here, or if the file is not a record.
    """
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        return read_record(path)
    rows = sorted(path.name for path in build_dir().glob("*") if path.is_dir())
    for recipe in rows:
        for record in all_of(recipe):
            names = {record.run_id, record.ami_id, *record.amis.values()}
            # A row's name means its newest build with an AMI.
            if name in names or (name == recipe and record.versions):
                return record
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


def read_record(path: Path) -> Record:
    """The record in a file. Raises KilnError (exit status 2) if it is not one."""
    data = document(path)
    try:
        return _ADAPTER.validate_python(_of_schema_1(data) if data.get("schema") == 1 else data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise KilnError(f"{path}: not a record of a run: `{where}`: {first['msg']}") from None


def document(path: Path) -> dict[str, Any]:
    """The JSON mapping in a file. Raises KilnError (exit status 2) if it does not hold one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise KilnError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise KilnError(f"{path}: not a JSON record: {error}") from None
    if not isinstance(data, dict):
        raise KilnError(f"{path}: not a JSON record: it is not a mapping")
    return data


def _of_schema_1(data: dict[str, Any]) -> dict[str, Any]:
    """Convert a record of schema 1, which had one digest and left out unknown values."""
    note = "an AMI of the lab on this machine" if data.get("target") == "lab" else ""
    source = data.get("source_ami")
    if isinstance(source, dict):
        source = {"name": "", "created": "", "found_by": "", **source}
        source = source if source.get("ami_id") else None
    return {
        "folder": "",
        "kind": "build",
        "image_note": note,
        **data,
        "source_ami": source,
        "recipe_digest": data.get("digest"),
        "schema": SCHEMA,
    }
