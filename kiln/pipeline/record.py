"""The record of a run: what it made, from what, and the verdict.

The published JSON Schema is docs/record.schema.json, docs/records.md explains each key.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.cloud.capacity import Try
from kiln.cloud.runs import Run
from kiln.cloud.target import ParentAmi
from kiln.pipeline.checks import Checks
from kiln.telemetry.settings import Telemetry

SCHEMA = 2

Status = Literal["verified", "failed", "unverified"]


# _kiln_missing of provisioners/lib/packages.sh.
_MISSING = re.compile(r"no repository has a package named ([^;]+)")


@dataclass(frozen=True)
class Failure:
    """How a provisioner failed.

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

    `recipe` is the recipe as JSON and `versions` the image's version-info.json. `recipe_digest` and
    `input_digest` are SHA-256 as hex (see docs/records.md for what each promises). Times are UTC in
    ISO 8601; `seconds` maps a stage to its wall-clock seconds.
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
    vendors: str | None = None
    emulated: str | None = None
    own_kernel: str | None = None
    source_ami: ParentAmi | None = None
    ami_id: str | None = None
    amis: dict[str, str] = field(default_factory=dict)
    instance_type: str | None = None
    verify_instance_type: str | None = None
    tries: tuple[Try, ...] = ()
    packer: str | None = None
    git_commit: str = "unknown"
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
        """Whether the AMI passed its checks, and everything else of the run was removed."""
        return self.status == "verified" and not self.left

    @property
    def is_inconclusive(self) -> bool:
        """Whether it is an aborted or partial (`-k`) verification: the AMI is what it was."""
        return (self.kind, self.status) == ("verify", "unverified")

    def as_json(self) -> dict[str, Any]:
        """The record as plain data, `schema` first."""
        return {"schema": self.schema, **asdict(self)}


_ADAPTER = TypeAdapter(Record)


def write_record(run: Run, record: Record) -> None:
    """Write a run's record atomically."""
    fresh = run.record.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(as_text(record), encoding="utf-8")
    fresh.rename(run.record)


def as_text(record: Record) -> str:
    """A record as its file has it."""
    return json.dumps(record.as_json(), indent=2) + "\n"


def read_record(path: Path) -> Record:
    """The record in a file."""
    return parse_record(document(path), str(path))


def parse_record(data: dict[str, Any], path: str) -> Record:
    """The record in JSON data; `path` names where it was read, in messages."""
    if data.get("schema", SCHEMA) != SCHEMA:
        shown = vocabulary.shown(data["schema"])
        raise KilnError(
            f"{path}: a record of schema {shown}; this checkout reads {SCHEMA}",
            hint="use the checkout that wrote it, or a newer one",
        )
    try:
        record = _ADAPTER.validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise KilnError(f"{path}: not a record of a run: `{where}`: {first['msg']}") from None
    _require_ids(record, path)
    return record


def _require_ids(record: Record, path: str) -> None:
    """Refuse an id that is not one: what reads a record sends its ids to EC2 and to git, and makes
    paths of its names."""
    parent = record.source_ami.ami_id if record.source_ami else None
    ids: list[tuple[str, vocabulary.Form, Any]] = [
        ("run_id", vocabulary.RUN_ID, record.run_id),
        ("target", vocabulary.TARGET, record.target),
        ("region", vocabulary.REGION, record.region),
        ("ami_id", vocabulary.AMI_ID, record.ami_id),
        ("source_ami.ami_id", vocabulary.AMI_ID, parent),
        ("recipe_digest", vocabulary.SHA256, record.recipe_digest),
        ("input_digest", vocabulary.SHA256, record.input_digest),
        ("instance_type", vocabulary.INSTANCE_TYPE, record.instance_type),
        ("verify_instance_type", vocabulary.INSTANCE_TYPE, record.verify_instance_type),
        ("git_commit", vocabulary.COMMIT, record.git_commit),
        ("recipe.name", vocabulary.RECIPE_NAME, record.recipe.get("name")),
        *(("amis", vocabulary.REGION, region) for region in record.amis),
        *(("amis", vocabulary.AMI_ID, ami_id) for ami_id in record.amis.values()),
    ]
    for name, form, value in ids:
        if value is not None:
            form.required(value, f"{path}: not a record of a run: `{name}`")


def document(path: Path) -> dict[str, Any]:
    """The JSON mapping in a file."""
    try:
        return mapping(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise KilnError(f"{path}: no such file") from None
    except OSError as error:
        raise KilnError(f"{path}: not a JSON record: {error.strerror}") from None


def mapping(text: bytes, path: str) -> dict[str, Any]:
    """The JSON mapping in a text; `path` names where it was read, in messages."""
    try:
        data: Any = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise KilnError(f"{path}: not a JSON record: {error}") from None
    if not isinstance(data, dict):
        raise KilnError(f"{path}: not a JSON record: it is not a mapping")
    return data


# What provisioners/lib/version_info.py writes on the build instance; its docstring explains each
# key.


@dataclass(frozen=True)
class OsRelease:
    """From os-release."""

    id: str
    version_id: str
    name: str


@dataclass(frozen=True)
class Kernels:
    """The kernel that the image boots, and the one that ran during the bake."""

    boots: str
    running: str


@dataclass(frozen=True)
class InstalledPackage:
    """A package that a package manager installed; a name may occur several times."""

    manager: Literal["rpm", "dpkg"]
    name: str
    epoch: str
    version: str
    release: str
    arch: str


@dataclass(frozen=True)
class KernelModuleFile:
    """A kernel module of GPU or network, as modinfo describes it."""

    name: str
    kernel: str
    version: str
    srcversion: str
    vermagic: str
    license: str
    path: str


@dataclass(frozen=True)
class Runfile:
    """An NVIDIA .run install."""

    name: str
    version: str


@dataclass(frozen=True)
class EfaInstall:
    """What the EFA installer reports."""

    installer: str
    packages: list[str]


@dataclass(frozen=True)
class DownloadedFile:
    """A file that a provisioner downloaded."""

    url: str
    sha256: str
    sha256_was: Literal["locked", "first-seen"]
    component: str


@dataclass(frozen=True)
class UnitFile:
    """A systemd unit file."""

    name: str
    state: str


@dataclass(frozen=True)
class UpgradablePackage:
    """A package of which the bake's repositories had a newer version, with epoch and release."""

    name: str
    version: str


@dataclass(frozen=True)
class VersionInfo:
    """What is on an image: version-info.json."""

    schema: Literal[1]
    os: OsRelease
    arch: str
    kernel: Kernels
    packages: list[InstalledPackage]
    modules: list[KernelModuleFile]
    runfiles: list[Runfile]
    efa: EfaInstall | None
    components: dict[str, dict[str, Any]]
    downloads: list[DownloadedFile]
    paths: dict[str, str | list[str]]
    units: list[UnitFile]
    held: list[str]
    files: dict[str, str] = field(default_factory=dict)
    sysctls: dict[str, str] = field(default_factory=dict)
    boot: dict[str, str] = field(default_factory=dict)
    upgradable: list[UpgradablePackage] = field(default_factory=list)


# A recipe that was read from an image has no row; the other keys are younger than schema 2.
_MAY_LACK = {"row", "line", "package_snapshot"}


def record_json_schema() -> str:
    """The JSON Schema of a record, as docs/record.schema.json holds it."""
    schema = _ADAPTER.json_schema()
    # As it is written: a row without the places of its fields.
    recipe = Recipe.model_json_schema(mode="serialization")
    for part in (*(TypeAdapter(kind).json_schema() for kind in (VersionInfo, Telemetry)), recipe):
        schema["$defs"] |= part.pop("$defs", {}) | {part["title"]: part}
    recipe["required"] = [name for name in recipe["required"] if name not in _MAY_LACK]
    recipe["properties"]["telemetry"] = {"$ref": "#/$defs/Telemetry"}
    schema["properties"]["recipe"] = {"$ref": "#/$defs/Recipe"}
    schema["properties"]["versions"] = {
        "anyOf": [{"$ref": "#/$defs/VersionInfo"}, {"type": "null"}],
        "default": None,
    }
    return json.dumps({"title": "Record", **schema}, indent=2) + "\n"
