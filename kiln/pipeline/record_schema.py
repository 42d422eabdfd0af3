"""The JSON Schema of a record: docs/record.schema.json.

`record.Record` and `base.recipe.Recipe` describe most of it. `VersionInfo` describes what
provisioners/lib/version_info.py writes on the build instance; its docstring explains each key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

from kiln.base.recipe import Recipe
from kiln.pipeline.record import Record
from kiln.telemetry.settings import Telemetry


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
    schema = _schema_of(Record)
    # As it is written: a row without the places of its fields.
    recipe = Recipe.model_json_schema(mode="serialization")
    for part in (_schema_of(VersionInfo), _schema_of(Telemetry), recipe):
        schema["$defs"] |= part.pop("$defs", {}) | {part["title"]: part}
    recipe["required"] = [name for name in recipe["required"] if name not in _MAY_LACK]
    recipe["properties"]["telemetry"] = {"$ref": "#/$defs/Telemetry"}
    schema["properties"]["recipe"] = {"$ref": "#/$defs/Recipe"}
    schema["properties"]["versions"] = {
        "anyOf": [{"$ref": "#/$defs/VersionInfo"}, {"type": "null"}],
        "default": None,
    }
    return json.dumps({"title": "Record", **schema}, indent=2) + "\n"


def _schema_of(kind: type[Any]) -> dict[str, Any]:
    return TypeAdapter(kind).json_schema()
