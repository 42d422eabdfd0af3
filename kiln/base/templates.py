"""The one Jinja environment: every text that leaves Kiln is a template in templates/.

A template's name says what it writes. A page (`*.html.j2`) escapes by itself. In HCL
(`*.pkr.hcl.j2`, `*.tf.j2`) every expression ends in `hcl`, `inside` or `comment`, which a test
holds. In YAML and JSON a text goes through `json`, in shell through `quote`. `yaml` writes a
list or mapping as a block.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from kiln.base.paths import TEMPLATES
from kiln.base.yaml_files import as_yaml

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment() -> Environment:
    """The environment of all templates; a template's name is its path in templates/."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "hcl": hcl_value,
        "inside": hcl_inside,
        "comment": hcl_comment,
        "json": _json,
        "quote": shlex.quote,
        "yaml": lambda data: as_yaml(data).rstrip("\n"),
    }
    return made


def render(template: str, /, **values: Any) -> str:
    """The text of a template of templates/, such as `packer/build.pkr.hcl.j2`."""
    return environment().get_template(template).render(values)


def _json(value: Any, indent: int | None = None) -> str:
    """A value as JSON, which is YAML too. Jinja's own `tojson` is for HTML: it escapes more."""
    return json.dumps(value, indent=indent, ensure_ascii=False)


_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


# What HCL's strings must escape besides the quote and the backslash, and comments cannot hold:
# https://github.com/hashicorp/hcl/blob/03587e0ffae6eaaf8e9f65766411e8b41262174f/hclsyntax/spec.md#quoted-templates
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _string(text: object) -> str:
    """A quoted HCL string whose value is exactly `text`."""
    return f'"{hcl_inside(text)}"'


def hcl_inside(text: object) -> str:
    """`text` as part of a quoted HCL string, without the quotes."""
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"')
    # `$${` would be `${` for Packer, but python-hcl2, which the policy reads it with, refuses some.
    escaped = escaped.replace("${", "\\u0024{").replace("%{", "\\u0025{")
    return _CONTROL.sub(_escaped, escaped)


def hcl_comment(text: object) -> str:
    """`text` as part of a comment that ends with its line."""
    return _CONTROL.sub(_escaped, str(text))


def _escaped(match: re.Match[str]) -> str:
    return _SHORT.get(match.group(), f"\\u{ord(match.group()):04x}")


class Expression(str):
    """HCL that is evaluated, not quoted: `Expression("var.region")`."""

    __slots__ = ()


def hcl_value(item: object, indent: int = 0) -> str:
    """A string, number, boolean, expression, list or mapping as HCL. `indent` is that of the
    line on which it begins, in spaces."""
    if isinstance(item, Expression):
        return item
    if isinstance(item, int):
        return str(item).lower()
    if isinstance(item, Mapping):
        return _mapping(item, indent)
    if isinstance(item, Sequence) and not isinstance(item, str):
        lines = [f"{' ' * (indent + 2)}{hcl_value(entry, indent + 2)}," for entry in item]
        return "\n".join(["[", *lines, f"{' ' * indent}]"]) if lines else "[]"
    return _string(item)


def _mapping(items: Mapping[str, object], indent: int) -> str:
    bare = all(_IDENTIFIER.fullmatch(key) for key in items)
    names = {key: key if bare else _string(key) for key in items}
    entries = [(names[key], hcl_value(item, indent + 2)) for key, item in items.items()]
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
