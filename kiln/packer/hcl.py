"""Values as HCL text, laid out as `packer fmt` wants it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping


def string(text: object) -> str:
    """A quoted HCL string that stands for exactly `text`."""
    quoted = json.dumps(str(text), ensure_ascii=False)
    return quoted.replace("${", "$${").replace("%{", "%%{")


class Expression(str):
    """HCL that is to be evaluated, not quoted: `Expression("var.region")`."""

    __slots__ = ()


def value(item: object) -> str:
    """An expression as it is, anything else as a string."""
    return str(item) if isinstance(item, Expression) else string(item)


def mapping(items: Mapping[str, object], indent: int) -> str:
    """`{ "key" = value … }` over several lines; `indent` is that of the line it begins on + 2."""
    if not items:
        return "{}"
    keys = {key: string(key) for key in items}
    width = max(len(text) for text in keys.values())
    pad = " " * (indent + 2)
    lines = [f"{pad}{keys[key]:<{width}} = {value(item)}" for key, item in items.items()]
    return "\n".join(["{", *lines, " " * indent + "}"])


def sequence(items: Iterable[object], indent: int) -> str:
    """`[ value, … ]` over several lines."""
    pad = " " * (indent + 2)
    lines = [f"{pad}{value(item)}," for item in items]
    return "\n".join(["[", *lines, " " * indent + "]"]) if lines else "[]"
