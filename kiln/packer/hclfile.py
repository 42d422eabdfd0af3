"""Reads rendered HCL back: its data, with file and line."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.base import input_file
from kiln.base.findings import Finding
from kiln.packer.hcl_values import HclError, parse_hcl
from kiln.packer.program import FOLDER_1_6
from kiln.packer.staleness import renewal, shown_packer

# Attributes with prose, which may contain text that values must not.
PROSE = ("condition", "description", "error_message")


@dataclass(frozen=True)
class Document:
    """One HCL file: its name in findings, its text and its data."""

    name: str
    text: str
    data: dict[str, Any]

    def line(self, *patterns: str) -> int:
        """The line of the last match, when `patterns` (regular expressions) are searched for one
        after another until one does not match."""
        at = 0
        for pattern in patterns:
            match = re.compile(pattern, re.MULTILINE).search(self.text, at)
            if not match:
                break
            at = match.end()
        return self.text.count("\n", 0, at) + 1

    def finding(self, rule: str, message: str, hint: str, *patterns: str) -> Finding:
        """An error at the line that `patterns` lead to."""
        return Finding("error", rule, message, hint, file=self.name, line=self.line(*patterns))

    def values(self) -> tuple[str, ...]:
        """Every text value once, without comments and prose."""
        return _values(self.text)


@dataclass(frozen=True)
class Template:
    """The HCL files that Packer reads for one AMI: those of one folder, links followed."""

    folder: Path
    documents: tuple[Document, ...]

    @property
    def for_1_6(self) -> bool:
        """Is it the folder for Packer 1.6, which supports neither IMDSv2 nor plugins?"""
        return self.folder.name == FOLDER_1_6

    def blocks(self, kind: str) -> Iterator[tuple[Document, dict[str, Any]]]:
        """File and content of every top-level block of that type."""
        for document in self.documents:
            yield from ((document, block) for block in blocks_in(document.data, kind))

    def sources(self) -> Iterator[tuple[Document, str, str, dict[str, Any]]]:
        """File, builder type, name and attributes of every source block."""
        for document, block in self.blocks("source"):
            for kind, named in block.items():
                for name, attributes in named.items() if isinstance(named, dict) else ():
                    if isinstance(attributes, dict):
                        yield document, kind, name, attributes

    def provisioners(self) -> Iterator[tuple[Document, str, dict[str, Any]]]:
        """File, type and attributes of every provisioner, in order."""
        for document, build in self.blocks("build"):
            for block in blocks_in(build, "provisioner"):
                for kind, attributes in block.items():
                    if isinstance(attributes, dict):
                        yield document, kind, attributes

    def local(self, name: str) -> tuple[Document, Any] | None:
        """A local value and its file; None if there is none of that name."""
        for document, block in self.blocks("locals"):
            if name in block:
                return document, block[name]
        return None

    def components(self) -> dict[str, Any]:
        """The components that the AMI's own file lists."""
        listed = self.local("components")
        return dict(listed[1]) if listed and isinstance(listed[1], dict) else {}

    def path(self, text: str) -> Path:
        """The file that a path in the HCL names, its locals and `path.root` filled in."""
        reference = re.compile(r"\$\{local\.(\w+)\}")
        while match := reference.search(text):
            local = self.local(match[1])
            if local is None:
                break
            text = text.replace(match[0], str(local[1]))
        return Path(text.replace("${path.root}", str(self.folder)))


def blocks_in(data: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The blocks of a type in a file or in a block; an attribute of that name is none of them."""
    value = data.get(kind)
    blocks = value if isinstance(value, list) else []
    return [block for block in blocks if isinstance(block, dict)]


def read_folder(folder: Path) -> tuple[list[Template], list[Finding]]:
    """What either Packer reads in an AMI's folder, and a finding per file that is not HCL."""
    templates, broken = [], {}
    for root in (folder, folder / FOLDER_1_6):
        documents = []
        for path in sorted(root.glob("*.pkr.hcl")):
            name = _shown(path, folder.parent)
            document = read_hcl(path, name)
            if isinstance(document, Finding):
                broken[name] = document
            else:
                documents.append(document)
        templates.append(Template(root, tuple(documents)))
    return templates, list(broken.values())


def hcl_files(folder: Path) -> list[Path]:
    """The HCL files of an AMI's folder and those it links to, each once."""
    paths = [*folder.glob("*.pkr.hcl"), *folder.glob(f"{FOLDER_1_6}/*.pkr.hcl")]
    return sorted({path.resolve() for path in paths})


def read_hcl(path: Path, name: str) -> Document | Finding:
    """Read an HCL file; `name` is its name in findings. Returns a finding if it is not HCL."""
    try:
        text = input_file.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = input_file.why_unreadable(error)
        return Finding("error", "hcl-missing", why, f"run {renewal()}", (), name, 1)
    try:
        return Document(name, text, parse_hcl(text))
    except HclError as error:
        hint = "run packer fmt there for more"
        return Finding(
            "error", "hcl-syntax", f"not valid HCL: {error}", hint, file=name, line=error.line
        )


@functools.cache
def _values(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_texts(parse_hcl(text))))


def value_with(pattern: str) -> str:
    """Matches `pattern` on a line that is neither a comment nor prose."""
    return rf"^(?! *#| *(?:{'|'.join(PROSE)}) *=).*?{pattern}"


def _shown(path: Path, root: Path) -> str:
    """The name of a file in findings: that of the file itself, not of a link to it."""
    real = path.resolve()
    inside = real if real.is_relative_to(root.resolve()) else path.absolute()
    return f"{shown_packer()}/{inside.relative_to(root.resolve()).as_posix()}"


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key not in PROSE:
                yield from _texts(value)
    elif isinstance(data, list):
        for value in data:
            yield from _texts(value)
    elif isinstance(data, str):
        yield data
