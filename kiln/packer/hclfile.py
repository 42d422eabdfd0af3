"""An HCL file read back: its data, and the line on which something stands."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.base.findings import Finding
from kiln.packer.program import BUILD_1_6

# Prose may name what values may not.
PROSE = ("condition", "description", "error_message")


@dataclass(frozen=True)
class Document:
    """One HCL file: where errors say it is, where it is, its text and its data."""

    name: str
    path: Path
    text: str
    data: dict[str, Any]

    @property
    def for_1_6(self) -> bool:
        """Is it the file for Packer 1.6, which knows no IMDSv2 and no plugins?"""
        return self.name.endswith(BUILD_1_6)

    @property
    def folder(self) -> Path:
        """The folder Packer runs in, which paths in the HCL are relative to."""
        return self.path.parent.parent if self.for_1_6 else self.path.parent

    def line(self, *patterns: str) -> int:
        """The line that the last of `patterns` (regular expressions) matches, each looked for
        after the one before; of the last one found when a later one is missing."""
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

    def sources(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Builder type, name and attributes of every source block."""
        for block in self.data.get("source", []):
            for kind, named in block.items():
                for name, attributes in named.items():
                    yield kind, name, attributes

    def provisioners(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Type and attributes of every provisioner, in order."""
        for build in self.data.get("build", []):
            for block in build.get("provisioner", []):
                yield from ((kind, attributes) for kind, attributes in block.items())

    def values(self) -> Iterator[str]:
        """Every text that is a value: no comment, no prose."""
        yield from _texts(self.data)


def hcl_files(folder: Path) -> list[Path]:
    """The HCL in a recipe's folder, that for Packer 1.6 last."""
    return [*sorted(folder.glob("*.pkr.hcl")), *sorted(folder.glob("packer-1.6/*.pkr.hcl"))]


def read(path: Path, name: str) -> Document | Finding:
    """Read an HCL file; `name` is how findings call it. A finding when it is no HCL."""
    from lark.exceptions import LarkError

    text = path.read_text(encoding="utf-8")
    try:
        return Document(name, path, text, _parsed(text))
    except LarkError as error:
        line = getattr(error, "line", None) or 1
        reason = str(error).splitlines()[0]
        hint = "run packer fmt there for more"
        return Finding(
            "error", "hcl-syntax", f"not valid HCL: {reason}", hint, file=name, line=line
        )


def _parsed(text: str) -> dict[str, Any]:
    """The data of a whole file, read block by block: most blocks are the same in every AMI's file,
    and python-hcl2 takes longer over a file than Packer does.

    Raises LarkError, with the line in the file, when it is no HCL.
    """
    from lark.exceptions import LarkError

    merged: dict[str, Any] = {}
    try:
        # What stands at the left margin begins a block, in text that `packer fmt` is content with.
        for block in re.split(r"^(?=[a-z])", text, flags=re.MULTILINE):
            for key, value in _loaded(block).items():
                merged[key] = [*merged.get(key, []), *value] if isinstance(value, list) else value
    except LarkError:
        # Cut wrongly, as inside a heredoc, or no HCL: the whole says which, and on which line.
        return _loaded(text)
    return merged


@functools.lru_cache(maxsize=1024)
def _loaded(text: str) -> dict[str, Any]:
    import hcl2

    options = hcl2.SerializationOptions(with_comments=False, strip_string_quotes=True)
    data: dict[str, Any] = hcl2.loads(text, serialization_options=options)
    return data


def value_with(pattern: str) -> str:
    """Matches `pattern` on a line that is neither a comment nor prose."""
    return rf"^(?! *#| *(?:{'|'.join(PROSE)}) *=).*?{pattern}"


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
