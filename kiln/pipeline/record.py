"""The record of a run: what it made, from what, and the verdict.

The published JSON Schema is docs/record.schema.json, docs/records.md explains each key.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import TypeAdapter, ValidationError

from kiln.base import vocabulary
from kiln.base.errors import KilnError, first_mistake
from kiln.base.recipe import Recipe
from kiln.cloud.network import Try
from kiln.cloud.runs import Run
from kiln.cloud.target import ParentAmi
from kiln.pipeline.checks import Checks

SCHEMA = 2
_WROTE_IT = "use the checkout that wrote it, or a newer one"

Status = Literal["verified", "failed", "unverified"]
# What reads a record sends its ids to EC2 and to git, and makes paths of its names.
RunId = Annotated[str, vocabulary.RUN_ID]
AmiId = Annotated[str, vocabulary.AMI_ID]
Region = Annotated[str, vocabulary.REGION]
InstanceType = Annotated[str, vocabulary.INSTANCE_TYPE]
Sha256 = Annotated[str, vocabulary.SHA256]


# _kiln_missing of provisioners/lib/packages.sh.
_MISSING = re.compile(r"no repository has a package named ([^;]+)")


@dataclass(frozen=True)
class Failure:
    """Failure of a provisioner.

    `script` is relative to the checkout; `line` counts from 1, None if unknown. `details` are the
    script's own lines about its error, `said` the last lines of output before it.
    """

    component: str
    script: str
    message: str
    line: int | None = None
    details: tuple[str, ...] = ()
    said: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """The packages that no repository has."""
        named = _MISSING.search(self.message)
        return named[1].split(" or ") if named else []

    def lines(self) -> list[str]:
        """The lines below the message: the place, the script's words, the output before them."""
        place = f"{self.script} line {self.line}" if self.line else self.script
        said = ["its last lines:", *(f"  | {line}" for line in self.said)] if self.said else []
        return [place, *self.details, *said]


@dataclass(frozen=True)
class Record:
    """One run: a build, or the verification of an existing AMI.

    `versions` is the image's version-info.json. `recipe_digest` and `input_digest` are SHA-256 as
    hex (see docs/records.md for what each promises). Times are UTC in ISO 8601; `seconds` maps a
    stage to its wall-clock seconds.
    """

    run_id: RunId
    kind: Literal["build", "verify"]
    status: Status
    recipe: Recipe
    target: Annotated[str, vocabulary.TARGET]
    region: Region
    started: str
    folder: str
    schema: int = SCHEMA
    recipe_digest: Sha256 | None = None
    input_digest: Sha256 | None = None
    recipe_from: str | None = None
    image_note: str = ""
    vendors: str | None = None
    emulated: str | None = None
    own_kernel: str | None = None
    source_ami: ParentAmi | None = None
    ami_id: AmiId | None = None
    amis: dict[Region, AmiId] = field(default_factory=dict)
    instance_type: InstanceType | None = None
    verify_instance_type: InstanceType | None = None
    tries: tuple[Try, ...] = ()
    packer: str | None = None
    git_commit: Annotated[str, vocabulary.COMMIT] = "unknown"
    finished: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    component_seconds: dict[str, float] = field(default_factory=dict)
    checks: Checks | None = None
    versions: dict[str, Any] | None = None
    error: str | None = None
    failure: Failure | None = None
    left: tuple[str, ...] = ()

    @property
    def succeeded(self) -> bool:
        """True if the AMI passed its checks, and everything else of the run was removed."""
        return self.status == "verified" and not self.left

    @property
    def is_inconclusive(self) -> bool:
        """True if it is an aborted or partial (`-k`) verification: the AMI is what it was."""
        return (self.kind, self.status) == ("verify", "unverified")

    def to_dict(self) -> dict[str, Any]:
        """The record as plain data, `schema` first."""
        return {"schema": self.schema, **_ADAPTER.dump_python(self, mode="json")}


_ADAPTER = TypeAdapter(Record)


def write_record(run: Run, record: Record) -> None:
    """Write a run's record atomically."""
    fresh = run.record.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(as_text(record), encoding="utf-8")
    fresh.rename(run.record)


def as_text(record: Record) -> str:
    """A record as its file has it."""
    return json.dumps(record.to_dict(), indent=2) + "\n"


def read_record(path: Path) -> Record:
    """The record in a file."""
    return parse_record(document(path), str(path))


def parse_record(data: dict[str, Any], path: str) -> Record:
    """The record in JSON data; `path` names where it was read, in messages."""
    if data.get("schema", SCHEMA) != SCHEMA:
        shown = vocabulary.shown(data["schema"])
        raise KilnError(
            f"{path}: a record of schema {shown}; this checkout reads {SCHEMA}",
            hint=_WROTE_IT,
        )
    try:
        return _ADAPTER.validate_python(data)
    except ValidationError as error:
        why = first_mistake(error)
        hint = _WROTE_IT if why.startswith("`recipe.") else ""
        raise KilnError(f"{path}: not a record of a run: {why}", hint=hint) from None


def document(path: Path) -> dict[str, Any]:
    """The JSON mapping in a file."""
    try:
        return mapping(path.read_bytes(), str(path))
    except OSError as error:
        raise KilnError(f"{path}: {error.strerror}") from None


def mapping(text: bytes, path: str) -> dict[str, Any]:
    """The JSON mapping in a text; `path` names where it was read, in messages."""
    try:
        data: Any = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise KilnError(f"{path}: not a JSON record: {error}") from None
    if not isinstance(data, dict):
        raise KilnError(f"{path}: not a JSON record: it is not a mapping")
    return data
