"""`/etc/kiln/version-info.json`, which lists what is on an image, checked as it comes in.

provisioners/lib/version_info.py writes it, and its docstring explains each key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from kiln.base.errors import KilnError, first_mistake
from kiln.base.recipe import Recipe
from kiln.pipeline import record, records
from kiln.telemetry.settings import Telemetry


class _Part(BaseModel):
    """A part of a version-info. A number is read as text; further keys are left out."""

    model_config = ConfigDict(
        frozen=True,
        coerce_numbers_to_str=True,
        # The published schema is of what a bake writes, which lacks nothing.
        json_schema_serialization_defaults_required=True,
    )


class OsRelease(_Part):
    """From os-release."""

    id: str = ""
    version_id: str = ""
    name: str = ""


class Kernels(_Part):
    """The kernel that the image boots, and the one that ran during the bake."""

    boots: str = ""
    running: str = ""


class InstalledPackage(_Part):
    """A package that a package manager installed; a name may occur several times."""

    manager: Literal["rpm", "dpkg", ""] = ""
    name: str
    epoch: str = ""
    version: str
    release: str | None
    arch: str = ""

    @field_validator("epoch", "arch", mode="before")
    @classmethod
    def _read_none(cls, value: Any) -> Any:
        # rpm prints (none) for what an entry of its database lacks, such as the arch of a key.
        return "" if value in (None, 0, "0", "(none)") else value

    @property
    def release_version(self) -> str:
        """The version with its release, unless that is empty: 2.34-5."""
        return f"{self.version}-{self.release}" if self.release else self.version

    @property
    def full_version(self) -> str:
        """Epoch, version and release; an epoch of 0 is left out: 1:2.34-5."""
        return f"{self.epoch}:{self.release_version}" if self.epoch else self.release_version


class KernelModuleFile(_Part):
    """A kernel module of GPU or network, as modinfo describes it."""

    name: str
    kernel: str
    version: str | None
    srcversion: str
    vermagic: str | None = None
    license: str | None = None
    path: str


class Runfile(_Part):
    """An NVIDIA .run install."""

    name: str
    version: str


class EfaInstall(_Part):
    """Report of the EFA installer."""

    installer: str
    packages: tuple[str, ...]


class ComponentRecord(_Part):
    """Report of a component's provisioner, with further keys of its own."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    version: str | None = None
    runfile: str | None = None
    archive: str | None = None
    plugin: str | None = None
    files: tuple[str, ...] = ()


class DownloadedFile(_Part):
    """A file that a provisioner downloaded."""

    url: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    sha256_was: Literal["locked", "first-seen", ""] = ""
    component: str = ""


class UnitFile(_Part):
    """A systemd unit file."""

    name: str
    state: str


class UpgradablePackage(_Part):
    """A package of which the bake's repositories had a newer version, with epoch and release."""

    name: str
    version: str


class VersionInfo(_Part):
    """Contents of an image: version-info.json.

    `files`, `sysctls` and `boot` are None if the bake did not record them.
    """

    schema_: Literal[1] = Field(default=1, alias="schema")
    os: OsRelease = OsRelease()
    arch: str = ""
    kernel: Kernels = Kernels()
    packages: tuple[InstalledPackage, ...]
    modules: tuple[KernelModuleFile, ...] = ()
    runfiles: tuple[Runfile, ...] = ()
    efa: EfaInstall | None = None
    components: dict[str, ComponentRecord] = {}
    downloads: tuple[DownloadedFile, ...] = ()
    paths: dict[str, str | tuple[str, ...]] = {}
    units: tuple[UnitFile, ...] = ()
    held: tuple[str, ...] = ()
    upgradable: tuple[UpgradablePackage, ...] = ()
    files: dict[str, str] | None = None
    sysctls: dict[str, str] | None = None
    boot: dict[str, str] | None = None

    @field_validator("*", mode="before")
    @classmethod
    def _read_null_as_default(cls, value: Any, info: Any) -> Any:
        field = cls.model_fields[info.field_name]
        return field.default if value is None and not field.is_required() else value


def read_version_info(data: dict[str, Any], called: str = "the record") -> VersionInfo:
    """Return a version-info as a bake wrote it, checked; `called` names it."""
    try:
        # As JSON, since half a surrogate pair is a text for Python alone.
        return VersionInfo.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise KilnError(f"{called}: no version-info: {first_mistake(error)}") from None


def load_version_info(name: str) -> tuple[dict[str, Any], record.Record | None]:
    """Return the version-info as it was written, and the record of its build if known.

    `name` is a build, as for `find_record`, or the path of a copy of /etc/kiln/version-info.json.
    """
    path = Path(name)
    if path.is_file():
        data = record.document(path)
        if "packages" in data:
            return data, None
    build = records.find_record(name)
    if not build.versions:
        raise KilnError(f"{name}: its record holds no version-info")
    return build.versions, build


def record_json_schema() -> str:
    """Return the JSON Schema of a record, as docs/record.schema.json holds it."""
    schema = TypeAdapter(record.Record).json_schema()
    # As they are written: everything is there, a row without the places of its fields.
    recipe = Recipe.model_json_schema(mode="serialization")
    for name in ("Recipe", *Recipe.model_json_schema()["$defs"]):
        del schema["$defs"][name]
    info = VersionInfo.model_json_schema(mode="serialization")
    telemetry = TypeAdapter(Telemetry).json_schema()
    for part in (info, telemetry, recipe):
        schema["$defs"] |= part.pop("$defs", {}) | {part["title"]: part}
    # Younger than schema 2.
    may_lack = ("files", "sysctls", "boot", "upgradable")
    info["required"] = [name for name in info["required"] if name not in may_lack]
    recipe["properties"]["telemetry"] = {"$ref": "#/$defs/Telemetry"}
    schema["properties"]["versions"] = {
        "anyOf": [{"$ref": "#/$defs/VersionInfo"}, {"type": "null"}],
        "default": None,
    }
    return json.dumps({"title": "Record", **schema}, indent=2) + "\n"
