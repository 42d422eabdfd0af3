"""Stand-in packages as data, made from package templates.

A package template in `recipes/` is YAML for Jinja with the versions as variables, so a new version
is a line in `mirror/catalog.yaml`. A template's files are trees in `payloads/`, laid out as
they are installed, and links, stub libraries and kernel modules that it names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from kiln.base import yaml_files
from kiln.base.paths import is_compiled
from lab.vendors.packages import elf

HERE = Path(__file__).resolve().parent
STAND_IN = "AMI Kiln lab stand-in"
_EXECUTABLE_FOLDERS = {"bin", "sbin", "libexec"}


@dataclass(frozen=True)
class File:
    """A file to install: content and mode, or the target of a link."""

    content: bytes = b""
    mode: int = 0o644
    link: str | None = None


@dataclass(frozen=True)
class Package:
    """A package. `requires` and `provides` use the syntax of its format, rpm or deb.

    `arch` is noarch or a `uname -m` name.
    """

    name: str
    version: str
    release: str
    arch: str
    summary: str
    epoch: int = 0
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    obsoletes: tuple[str, ...] = ()
    files: dict[str, File] = field(default_factory=dict)
    config: tuple[str, ...] = ()
    scripts: dict[str, str] = field(default_factory=dict)

    def digest(self) -> str:
        """The SHA-256 of the whole package, as hex."""
        files = {
            path: [hashlib.sha256(file.content).hexdigest(), file.mode, file.link]
            for path, file in self.files.items()
        }
        plain = {**self.__dict__, "files": files}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


Parts = Mapping[str, dict[str, File]]


def load(template: str, parts: Parts | None = None, /, **variables: Any) -> list[Package]:
    """The packages of `recipes/<template>.yaml`; the variable `arch` is a `uname -m` name.

    `parts` are files made in Python, which a template refers to by name.
    """
    text = _environment().get_template(f"{template}.yaml").render(variables)
    content = yaml_files.parse_plain(text, f"{template}.yaml")
    return [_package(entry, parts or {}, variables) for entry in content["packages"]]


def tree(name: str, variables: Mapping[str, Any]) -> dict[str, File]:
    """The files of `payloads/<name>/`, with `@x@` in names and texts replaced by the variable x."""
    home = HERE / "payloads" / name
    if not home.is_dir():
        raise FileNotFoundError(f"{home}: a package template names a tree that does not exist")
    files: dict[str, File] = {}
    for path in sorted(home.rglob("*")):
        if is_compiled(path):
            continue
        name = "/" + fill(str(path.relative_to(home)), variables)
        if path.is_symlink():
            files[name] = File(link=fill(str(path.readlink()), variables))
        elif path.is_file():
            content = fill(path.read_text(), variables).encode()
            executable = path.parent.name in _EXECUTABLE_FOLDERS or content.startswith(b"#!")
            files[name] = File(content, 0o755 if executable else 0o644)
    return files


def fill(text: str, variables: Mapping[str, Any]) -> str:
    """`text` with each `@name@` replaced by that variable."""
    for name, value in variables.items():
        text = text.replace(f"@{name}@", str(value))
    return text


@cache
def _environment() -> jinja2.Environment:
    # The output is YAML, not HTML: nothing must be escaped.
    return jinja2.Environment(  # noqa: S701
        loader=jinja2.FileSystemLoader(HERE / "recipes"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _package(entry: dict[str, Any], parts: Parts, variables: dict[str, Any]) -> Package:
    arch = entry.get("arch", "noarch")
    values = {**variables, **entry.get("with", {})}
    values.update(name=entry["name"], version=str(entry["version"]), release=str(entry["release"]))
    files: dict[str, File] = {}
    for name in entry.get("trees", []):
        files.update(tree(name, values))
    for name in entry.get("parts", []):
        files.update(parts[name])
    for path, text in entry.get("files", {}).items():
        executable = Path(path).parent.name in _EXECUTABLE_FOLDERS
        files[path] = File(text.encode(), 0o755 if executable else 0o644)
    for path, soname in entry.get("libraries", {}).items():
        files[path] = File(elf.shared_library(soname, variables["arch"]), 0o755)
    for path, fields in entry.get("modules", {}).items():
        files[path] = File(elf.kernel_module(fields, variables["arch"]))
    for path, target in entry.get("links", {}).items():
        files[path] = File(link=target)
    return Package(
        name=entry["name"],
        version=str(entry["version"]),
        release=str(entry["release"]),
        arch=arch,
        epoch=entry.get("epoch", 0),
        summary=f"{STAND_IN}: {entry.get('summary', entry['name'])}",
        requires=tuple(entry.get("requires", [])),
        provides=tuple(entry.get("provides", [])),
        conflicts=tuple(entry.get("conflicts", [])),
        obsoletes=tuple(entry.get("obsoletes", [])),
        files=files,
        config=tuple(entry.get("config", [])),
        scripts=entry.get("scripts", {}),
    )
