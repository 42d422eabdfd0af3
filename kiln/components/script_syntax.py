"""A provisioner's bash as a syntax tree: its commands, functions and variables.

Tree-sitter's grammar of bash does not read all that bash accepts. Where it says so, with a node
ERROR, nothing should be called a mistake (`understands`, `has_gaps`). Where it does not say so,
this module puts it right: `$A/$B/c` is one word, `>file` and `{name}>file` have one target.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import KilnError
from kiln.base.overlay import shown_path

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Query

_NODES = """
(command) @command
(declaration_command) @declaration
(function_definition) @function
[(simple_expansion) (expansion) (regex)] @expansion
(concatenation "$" @expansion .)
(variable_assignment name: [(variable_name) @assigned (subscript name: (variable_name) @assigned)])
(for_statement variable: (variable_name) @assigned)
(ERROR) @error
"""
# Bash runs the command behind these words in the same shell.
_PREFIXES = ("time", "-p", "command", "builtin")
# What is beside a command's words: what is set for it alone, and the parts of a here-document.
_NO_WORDS = ("variable_assignment", "heredoc_body", "heredoc_end", "pipeline", "command", "list")
_REDIRECTIONS = ("file_redirect", "herestring_redirect", "heredoc_redirect")
_EXPANSION = re.compile(rb"\$(?:(\w+)|\{[!#]?(\w+)(?:\[[^]]*\])?(:?[-=+])?)")


@dataclass(frozen=True)
class Word:
    """A word as it is written, its line (from 1), and where it begins (in bytes)."""

    text: str
    line: int
    start: int


@dataclass(frozen=True)
class Expansion:
    """`$NAME`, or `${NAME…}` with the operator behind the name if that is `-`, `+` or `=`, with or
    without a colon."""

    name: str
    operator: str
    line: int
    node: Node


@dataclass(frozen=True, eq=False)
class Command:
    """A simple command: its words, the first of which is its name, without redirections."""

    node: Node

    @cached_property
    def name(self) -> str:
        """The name as it is written; empty if there is none."""
        name = self.node.child_by_field_name("name")
        written = node_text(name) if name else ""
        # Most commands are asked for no more than their name, which costs less than all words.
        return written if written not in _PREFIXES else "".join(w.text for w in self.words[:1])

    @cached_property
    def words(self) -> tuple[Word, ...]:
        """The words, the name first."""
        return tuple(_words(self.node))

    @property
    def arguments(self) -> tuple[Word, ...]:
        """The words behind the name."""
        return self.words[1:]

    @property
    def written(self) -> str:
        """The words and redirections as they are written, on one line."""
        *_, root = around(self.node)
        redirections = [
            part for part in _redirections(self.node) if part.type != "heredoc_redirect"
        ]
        end = max(part.end_byte for part in (self.node, *redirections))
        whole = (root.text or b"")[self.words[0].start - root.start_byte : end - root.start_byte]
        return " ".join(whole.decode("utf-8", "replace").replace("\\\n", " ").split())

    @property
    def sourced(self) -> Word | None:
        """The file whose commands this one runs in the same shell."""
        return self.words[1] if self.name in ("source", ".") and self.arguments else None


@dataclass(frozen=True, eq=False)
class Syntax:
    """What a script has, wherever in it, in the order of its text."""

    commands: tuple[Command, ...]
    # Their text is as it is written; `local NAME=text`.
    declarations: tuple[Node, ...]
    functions: tuple[Node, ...]
    expansions: tuple[Expansion, ...]
    # The names in assignments and loops.
    assigned: tuple[Node, ...]
    errors: tuple[Node, ...]

    @property
    def has_gaps(self) -> bool:
        """Whether more than a part of a line is not understood: anything may be in there."""
        return any(error.start_point.row < error.end_point.row for error in self.errors)

    def understands(self, node: Node) -> bool:
        """Whether the grammar can read the place of a node."""
        return not any(
            error.start_byte <= node.start_byte < error.end_byte for error in self.errors
        )


def script_syntax(script: Path) -> Syntax:
    """The syntax of a script. Raises what `script_text` raises."""
    return parsed(script_text(script))


@cache
def parsed(text: str) -> Syntax:
    """The syntax of a script's text."""
    from tree_sitter import QueryCursor

    content = text.encode()
    parser, query = _bash()
    captures = QueryCursor(query).captures(parser.parse(content).root_node)

    def nodes(kind: str) -> list[Node]:
        return sorted(captures.get(kind, ()), key=lambda node: node.start_byte)

    return Syntax(
        commands=tuple(map(Command, nodes("command"))),
        declarations=tuple(nodes("declaration")),
        functions=tuple(nodes("function")),
        expansions=tuple(_expansions(content, nodes("expansion"))),
        assigned=tuple(nodes("assigned")),
        errors=tuple(nodes("error")),
    )


def script_text(script: Path) -> str:
    """A script's text. Raises KilnError (exit status 2) with file and line if it is not UTF-8."""
    status = script.stat()
    return _read(script, status.st_mtime_ns, status.st_size)


# A matrix asks for each script once for each row.
@cache
def _read(script: Path, _changed: int, _size: int) -> str:
    content = script.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise KilnError(
            f"{shown_path(script)}:{line}: byte {content[error.start]:#04x} is not UTF-8",
            hint=r"save the file as UTF-8, or write the byte as $'\x..'",
        ) from None


def node_text(node: Node) -> str:
    """A node as it is written."""
    return (node.text or b"").decode("utf-8", "replace")


def around(node: Node) -> Iterator[Node]:
    """A node and those that it is in, from the inside out."""
    inner: Node | None = node
    while inner is not None:
        yield inner
        inner = inner.parent


@cache
def _bash() -> tuple[Parser, Query]:
    # Most commands read no script, and the import costs 20 ms.
    import tree_sitter_bash
    from tree_sitter import Language, Parser, Query

    language = Language(tree_sitter_bash.language())
    return Parser(language), Query(language, _NODES)


def _expansions(content: bytes, nodes: Iterable[Node]) -> Iterator[Expansion]:
    for node in nodes:
        # The grammar's end of a lone `$` is before the name.
        end = node.end_byte if node.is_named else len(content)
        for match in _EXPANSION.finditer(content, node.start_byte, end):
            escaped = node.type == "regex" and content[match.start() - 1 : match.start()] == b"\\"
            if not escaped and (node.is_named or match.start() == node.start_byte):
                name, operator = (match[1] or match[2]).decode(), (match[3] or b"").decode()
                line = content.count(b"\n", 0, match.start()) + 1
                yield Expansion(name, operator, line, node)
            # Those inside of it are nodes of their own; a pattern is one, whatever it has inside.
            if node.type != "regex":
                break


def _words(command: Node) -> Iterator[Word]:
    parts: list[Node] = []
    for node in (*command.children, *_redirections(command)):
        parts += node.children if node.type in _REDIRECTIONS else [node]
    behind_prefixes = is_target = False
    for group in _touching(parts):
        last = group[-1]
        if any(_is_operator(part) for part in group):
            is_target = _is_operator(last) and not node_text(last).endswith("-")
        elif is_target:
            is_target = False
        elif group[0].type not in _NO_WORDS:
            word = "".join(map(node_text, group))
            behind_prefixes = behind_prefixes or word not in _PREFIXES
            if behind_prefixes:
                yield Word(word, group[0].start_point.row + 1, group[0].start_byte)


def _is_operator(part: Node) -> bool:
    """Is it of a redirection?"""
    return (part.is_error or not part.is_named) and node_text(part).lstrip("&")[:1] in ("<", ">")


def _redirections(command: Node) -> Iterator[Node]:
    """Those of a command; the grammar gives it those of a list to its last one."""
    node = command
    while (outer := node.parent) and outer.type in ("list", "pipeline", "negated_command"):
        if outer.end_byte != node.end_byte:
            return
        node = outer
    if outer and outer.type == "redirected_statement":
        yield from outer.children_by_field_name("redirect")


def _touching(nodes: Iterable[Node]) -> list[list[Node]]:
    """Nodes without a blank between them are one word."""
    groups: list[list[Node]] = []
    for node in nodes:
        if groups and groups[-1][-1].end_byte == node.start_byte:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups
