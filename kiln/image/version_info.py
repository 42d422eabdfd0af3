"""`/etc/kiln/version-info.json`, which lists what is on an image, checked as it comes in.

provisioners/lib/version_info.py writes it, and its docstring explains each key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kiln.base.errors import KilnError
from kiln.pipeline import record, records


class _Part(BaseModel):
    """A part of a version-info. A number is read as text; further keys are left out."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)


class Package(_Part):
    """An installed package; a name may occur several times. An epoch of 0 is ""."""

    manager: str = ""
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
        """The same with the epoch: 1:2.34-5."""
        return f"{self.epoch}:{self.release_version}" if self.epoch else self.release_version


class Module(_Part):
    """A kernel module."""

    name: str
    version: str | None
    srcversion: str
    kernel: str
    path: str
    vermagic: str | None = None
    license: str | None = None


class Runfile(_Part):
    """An NVIDIA .run install."""

    name: str
    version: str


class Efa(_Part):
    """What the EFA installer reports."""

    installer: str
    packages: tuple[str, ...]


class Unit(_Part):
    """A systemd unit file."""

    name: str
    state: str


class Download(_Part):
    """A file that a provisioner downloaded."""

    url: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class ComponentRecord(_Part):
    """What the provisioner of a component reports; `files` are those of an overlay's."""

    version: str | None = None
    runfile: str | None = None
    archive: str | None = None
    plugin: str | None = None
    files: tuple[str, ...] = ()


class VersionInfo(_Part):
    """What is on an image; `files`, `sysctls`, `boot` are None if the bake did not record them."""

    os: dict[str, str] = {}
    arch: str = ""
    kernel: dict[str, str] = {}
    packages: tuple[Package, ...]
    modules: tuple[Module, ...] = ()
    runfiles: tuple[Runfile, ...] = ()
    efa: Efa | None = None
    components: dict[str, ComponentRecord] = {}
    downloads: tuple[Download, ...] = ()
    paths: dict[str, str | tuple[str, ...]] = {}
    units: tuple[Unit, ...] = ()
    held: tuple[str, ...] = ()
    files: dict[str, str] | None = None
    sysctls: dict[str, str] | None = None
    boot: dict[str, str] | None = None

    @field_validator("*", mode="before")
    @classmethod
    def _read_null_as_default(cls, value: Any, info: Any) -> Any:
        field = cls.model_fields[info.field_name]
        return field.default if value is None and not field.is_required() else value


def raw_version_info(data: dict[str, Any], called: str = "the record") -> dict[str, Any]:
    """The version-info in a build record, or `data` itself if it is one; `called` names it."""
    for candidate in (data.get("versions"), data):
        if isinstance(candidate, dict) and isinstance(candidate.get("packages"), list):
            return candidate
    raise KilnError(
        f"{called} holds no version-info",
        hint="give a build record, or a copy of /etc/kiln/version-info.json",
    )


def read_version_info(data: dict[str, Any], called: str = "the record") -> VersionInfo:
    """The version-info in a build record or in `data` itself, checked; `called` names it."""
    try:
        # As JSON, since half a surrogate pair is a text for Python alone.
        return VersionInfo.model_validate_json(json.dumps(raw_version_info(data, called)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise KilnError(
            f"{called}: `{where}`: {first['msg']}",
            hint="give a build record, or /etc/kiln/version-info.json, as a bake wrote it",
        ) from None


def load_version_info(name: str) -> tuple[dict[str, Any], record.Record | None]:
    """The version-info as it was written, and the record of its build if known.

    `name` is a build, as for `find_record`, or the path of a copy of /etc/kiln/version-info.json.
    """
    path = Path(name)
    if path.is_file():
        data = record.document(path)
        if isinstance(data.get("packages"), list):
            return data, None
    build = records.find_record(name)
    return raw_version_info({"versions": build.versions}, name), build
