"""Plain data as HCL text, laid out as `packer fmt` lays it out.

Every value that a template of HCL inserts goes through `value`, `inside` or `comment`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


# What HCL's strings must escape besides the quote and the backslash, and comments cannot hold:
# https://github.com/hashicorp/hcl/blob/03587e0ffae6eaaf8e9f65766411e8b41262174f/hclsyntax/spec.md#quoted-templates
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def string(text: object) -> str:
    """A quoted HCL string whose value is exactly `text`."""
    return f'"{inside(text)}"'


def inside(text: object) -> str:
    """`text` as part of a quoted HCL string, without the quotes."""
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"')
    # `$${` would be `${` for Packer, but python-hcl2, which the policy reads it with, refuses some.
    escaped = escaped.replace("${", "\\u0024{").replace("%{", "\\u0025{")
    return _CONTROL.sub(_escaped, escaped)


def comment(text: object) -> str:
    """`text` as part of a comment that ends with its line."""
    return _CONTROL.sub(_escaped, str(text))


def _escaped(match: re.Match[str]) -> str:
    return _SHORT.get(match.group(), f"\\u{ord(match.group()):04x}")


class Expression(str):
    """HCL that is evaluated, not quoted: `Expression("var.region")`."""

    __slots__ = ()


def value(item: object, indent: int = 0) -> str:
    """A string, number, boolean, expression, list or mapping as HCL. `indent` is that of the
    line on which it begins, in spaces."""
    if isinstance(item, Expression):
        return item
    if isinstance(item, int):
        return str(item).lower()
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
