"""Plain data as HCL text, laid out as `packer fmt` lays it out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def string(text: object) -> str:
    """A quoted HCL string whose value is exactly `text`."""
    quoted = json.dumps(str(text), ensure_ascii=False)
    return quoted.replace("${", "$${").replace("%{", "%%{")


class Expression(str):
    """HCL that is evaluated, not quoted: `Expression("var.region")`."""

    __slots__ = ()


def value(item: object, indent: int = 0) -> str:
    """A string, expression, list or mapping as HCL. `indent` is that of the line on which it
    begins, in spaces."""
    if isinstance(item, Expression):
        return str(item)
    if isinstance(item, Mapping):
        return _mapping(item, indent)
    if isinstance(item, Sequence) and not isinstance(item, str):
        lines = [f"{' ' * (indent + 2)}{value(entry, indent + 2)}," for entry in item]
        return "\n".join(["[", *lines, f"{' ' * indent}]"]) if lines else "[]"
    return string(item)


def _mapping(items: Mapping[str, object], indent: int) -> str:
    bare = all(_IDENTIFIER.fullmatch(key) for key in items)
    names = {key: key if bare else string(key) for key in items}
    entries = [(names[key], value(item, indent + 2)) for key, item in items.items()]
    lines: list[str] = []
    aligned: list[tuple[str, str]] = []
    for key, text in entries:
        if "\n" in text:  # packer fmt aligns neighbouring one-line entries
            lines += [*_aligned(aligned, indent + 2), f"{' ' * (indent + 2)}{key} = {text}"]
            aligned = []
        else:
            aligned.append((key, text))
    lines += _aligned(aligned, indent + 2)
    return "\n".join(["{", *lines, f"{' ' * indent}}}"]) if lines else "{}"


def _aligned(entries: Sequence[tuple[str, str]], indent: int) -> list[str]:
    width = max((len(key) for key, _ in entries), default=0)
    return [f"{' ' * indent}{key:<{width}} = {text}" for key, text in entries]
