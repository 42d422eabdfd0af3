"""HCL text → its data: blocks as dicts, literals as Python's values, other expressions as text.

The shapes are those of python-hcl2, which judges this module in its tests:

    locals { a = 1 }                {"locals": [{"a": 1}]}
    source "amazon-ebs" "gpu" {}    {"source": [{"amazon-ebs": {"gpu": {}}}]}
    tags = merge(a, b)              {"tags": "${merge(a, b)}"}
    only = ["x", var.y]             {"only": ["x", "${var.y}"]}
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_ESCAPE = re.compile(r'\\(["\\nrt]|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})')
_ESCAPED = {'"': '"', "\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
_NEGATIVE = re.compile(r"-(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")
# What has one child, which it stands for. A name alone is a word of HCL, as in `type = string`.
_WRAPPERS = ("expression", "literal_value", "template_expr", "collection_value", "variable_expr")

# What the grammar calls a part that is missing → in the words of HCL. Where a value is missing, it
# takes the beginning of the shortest one for what is missing.
_MISSING = {
    **dict.fromkeys(("{", "[", "(", "<<"), "a value"),
    "quoted_template_end": "the closing quote",
    "template_interpolation_end": "'}'",
    "template_directive_end": "'}'",
    "heredoc_identifier": "the end of a heredoc",
}


class HclError(ValueError):
    """Text that is not HCL, and the line (from 1) where it ceases to be."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@cache
def parse_hcl(text: str) -> dict[str, Any]:
    """The data of a file. Raises HclError if the text is not HCL.

    Kept in memory only, since all AMIs share most files: what the policy judges must not come from
    a file that somebody else may have written.
    """
    with _not_too_deep():
        return _body(_root(text))


@cache
def references(text: str) -> frozenset[tuple[str, ...]]:
    """The names with dots in a file's expressions, in parts: `local.recipe.volume.size`. Of
    `local.recipe["volume"]` it is `local.recipe`. Raises HclError if the text is not HCL."""
    with _not_too_deep():
        return frozenset(_paths(_root(text)))


@contextmanager
def _not_too_deep() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise HclError("an expression in it has too many parts", 1) from None


def _root(text: str) -> Node:
    root = _parser().parse(text.encode()).root_node
    if root.has_error:
        error = _first_error(root)
        near = _text(error).strip().splitlines()
        message = f"unexpected {near[0][:60]!r}" if near else f"{_missing(error)} is missing"
        # What is missing at the end is missing on the last line.
        raise HclError(message, min(error.start_point.row + 1, len(text.splitlines())))
    return root


def _missing(node: Node) -> str:
    """What is missing at the node, in words: other named nodes are values."""
    return _MISSING.get(node.type) or ("a value" if node.is_named else repr(node.type))


@cache
def _parser() -> Parser:
    import tree_sitter_hcl
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_hcl.language()))


def _first_error(node: Node) -> Node:
    """The innermost first node that the grammar could not read."""
    for child in node.children:
        if child.has_error or child.is_missing:
            return _first_error(child)
    return node


def _body(node: Node) -> dict[str, Any]:
    """The attributes and blocks of a file or of a block; blocks of one type are a list."""
    attributes: dict[str, Any] = {}
    blocks: dict[str, list[Any]] = {}
    for part in _children(node):
        if part.type == "body":  # all that a file has
            return _body(part)
        first, *rest = _children(part)
        name = _text(first)
        if name in attributes or (part.type == "attribute" and name in blocks):
            raise HclError(f"{name} is there twice", part.start_point.row + 1)
        if part.type == "attribute":
            attributes[name] = _value(rest[0])
            continue
        content = next((_body(each) for each in rest if each.type == "body"), {})
        labels = [_value(each) for each in rest if each.type in ("identifier", "string_lit")]
        for label in reversed(labels):
            content = {label: content}
        blocks.setdefault(name, []).append(content)
    return attributes | blocks


def _value(node: Node) -> Any:
    """A literal's value; the text of another expression, as `${…}`."""
    if node.type in _WRAPPERS and node.child_count == 1:  # parentheses are more
        return _value(node.children[0])
    if node.type in _READERS:
        return _READERS[node.type](node)
    if number := _NEGATIVE.fullmatch(_text(node)):
        return -_number(number[1])
    return f"${{{_text(node)}}}"


def _string(node: Node) -> str:
    return _ESCAPE.sub(_unescaped, _text(node)[1:-1])


def _tuple(node: Node) -> list[Any]:
    return [_value(element) for element in _children(node) if element.type == "expression"]


def _object(node: Node) -> dict[str, Any]:
    pairs = (_children(element) for element in _children(node) if element.type == "object_elem")
    return {_key(key): _value(value) for key, value in pairs}


def _key(node: Node) -> str:
    """The key of an object: a bare name is that name, not a reference."""
    text = _text(node)
    return text if re.fullmatch(r"[\w-]+", text) else str(_value(node))


def _number(text: str) -> int | float:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:  # Python reads no number of more than 4,300 digits
        return float(text)


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code in _ESCAPED:
        return _ESCAPED[code]
    number = int(code[1:], 16)
    no_letter = number > sys.maxunicode or 0xD800 <= number <= 0xDFFF
    return match[0] if no_letter else chr(number)


def _children(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment"]


def _text(node: Node) -> str:
    """A node's text without the comments in it."""
    text = node.text or b""
    for comment in reversed(list(_comments(node))):
        start, end = comment.start_byte - node.start_byte, comment.end_byte - node.start_byte
        text = text[:start] + text[end:]
    return text.decode()


_READERS: dict[str, Callable[[Node], Any]] = {
    "identifier": _text,
    "heredoc_template": _text,
    "string_lit": _string,
    "quoted_template": _string,
    "numeric_lit": lambda node: _number(_text(node)),
    "bool_lit": lambda node: _text(node) == "true",
    "null_lit": lambda _: None,
    "tuple": _tuple,
    "object": _object,
}


def _comments(node: Node) -> Iterator[Node]:
    for child in node.children:
        if child.type == "comment":
            yield child
        elif child.child_count:
            yield from _comments(child)


def _paths(node: Node) -> Iterator[tuple[str, ...]]:
    """The longest names in a part of the tree: a variable, and what is read of it by name."""
    name: list[str] = []
    for child in _children(node):
        if child.type == "variable_expr":
            name = [_text(child)]
        elif child.type == "get_attr" and name:
            name.append(_text(child).removeprefix("."))
        else:
            if name:
                yield tuple(name)
            name = []
            yield from _paths(child)
    if name:
        yield tuple(name)
