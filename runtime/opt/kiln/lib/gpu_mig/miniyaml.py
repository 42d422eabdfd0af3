"""A strict reader for the YAML of mig-parted's configuration, which knows the line of each value.

PyYAML is not on the AMI. The subset: block mappings and sequences, flow collections (hence JSON),
comments, quoted strings, and plain scalars of unambiguous type. Values that YAML 1.1 and 1.2 read
differently (`yes`, `0x10`, `1:20`, `1e3`, `~`), anchors, tags and block scalars are refused with
the advice to quote them: a wrong guess would create a wrong layout.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, NoReturn

from .errors import MigError


class Node(NamedTuple):
    """A value and the line it starts on. `value`: dict of str to Node, list of Node, or scalar."""

    value: Any
    line: int


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


_PLAIN = re.compile(r"[A-Za-z0-9_.+/@=-]+(?: +[A-Za-z0-9_.+/@=-]+)*")
_INT = re.compile(r"(0|-?[1-9][0-9]{0,17})\Z")  # longer numbers must be quoted
# Text that starts with a letter or sign, or a profile name such as 1g.5gb.
_SAFE_TEXT = re.compile(
    r"(?:[A-Za-z_/][A-Za-z0-9_.+/@=-]*( [A-Za-z0-9_.+/@=-]+)*|[0-9]+[cg]\.[0-9a-z.+-]+)\Z"
)
_AMBIGUOUS = frozenset(["yes", "no", "on", "off", "y", "n", "null"])
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_DIRECTIVES_END = re.compile(r"---(?:[ \t]+(?:#.*)?)?\Z")
_DOCUMENT_END = re.compile(r"\.\.\.(?:[ \t]+(?:#.*)?)?\Z")
_SURROGATE = re.compile(r"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F]")
_BLOCK_ONLY = re.compile(r"^(-|[|>&*!%@`?])")


def loads(text: str, source: str = "<string>") -> Node:
    """`text` as a Node tree. Raises MigError with `source`:line."""
    try:
        return _Reader(text, source).document()
    except RecursionError:
        raise MigError(f"{source}: nested too deeply to be a MIG configuration") from None


def plain(node: Node) -> Any:
    """The tree without its line numbers: dict, list, str, int, bool, None."""
    if isinstance(node.value, dict):
        return {k: plain(v) for k, v in node.value.items()}
    if isinstance(node.value, list):
        return [plain(v) for v in node.value]
    return node.value


class _Reader:
    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.lines: list[_Line] = []
        self.at = 0
        self.marked = self.ended = False  # by `---` and by what ends a document
        self._split(text)

    def fail(self, line: int, message: str, hint: str = "") -> NoReturn:
        raise MigError(f"{self.source}:{line}: {message}", hint)

    # --- lines -----------------------------------------------------------------------------

    def _split(self, text: str) -> None:
        depth = 0
        # A byte order mark, which Windows editors write, says nothing.
        text = text[1:] if text.startswith("\ufeff") else text
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.rstrip("\r")
            if _FORBIDDEN.search(line):
                self.fail(number, "a control character", "the file must be plain text")
            if not depth and self._is_mark(line):
                continue
            if line.startswith("%"):
                self.fail(number, "a directive", "remove it")
            body, depth_after = self._strip_comment(line, number, depth)
            # Between brackets a tab is as good as a space.
            if not depth and "\t" in line[: len(line) - len(line.lstrip(" \t"))]:
                self.fail(number, "a tab in the indentation", "indent with spaces")
            # Only spaces and tabs are blank in YAML, where Python strips more.
            bare = body.strip(" \t")
            if bare and self.ended:
                self.fail(number, "a second document", "put everything in one document")
            if depth:
                joined = self.lines[-1]
                self.lines[-1] = joined._replace(text=joined.text + "\n" + bare)
            elif bare:
                self.lines.append(_Line(number, len(body) - len(body.lstrip(" ")), bare))
            depth = depth_after
        if depth:
            self.fail(self.lines[-1].number, "a bracket is never closed")

    def _is_mark(self, line: str) -> bool:
        """`---` or `...`: after the first document nothing may follow."""
        if _DIRECTIVES_END.match(line) and not self.marked and not self.lines:
            self.marked = True
            return True
        if _DIRECTIVES_END.match(line) or _DOCUMENT_END.match(line):
            self.ended = True
            return True
        return False

    def _strip_comment(self, line: str, number: int, depth: int) -> tuple[str, int]:
        quote, i = "", 0
        while i < len(line):
            c = line[i]
            if quote == '"' and c == "\\":
                i += 1
            elif quote:
                quote = "" if c == quote else quote
            elif c in "\"'":
                quote = c
            elif c == "#" and (i == 0 or line[i - 1] in " \t"):
                return line[:i], depth
            elif c in "[{":
                depth += 1
            elif c in "]}":
                depth -= 1
                if depth < 0:
                    self.fail(number, f"a closing {c!r} without an opening bracket")
            i += 1
        if quote:
            self.fail(number, "a quote is never closed", "strings must end on their own line")
        return line, depth

    # --- block style -----------------------------------------------------------------------

    def document(self) -> Node:
        if not self.lines:
            return Node(None, 1)
        root = self._block(self.lines[0].indent)
        if self.at < len(self.lines):
            self.fail(self.lines[self.at].number, "wrong indentation")
        return root

    def _block(self, indent: int) -> Node:
        first = self.lines[self.at]
        if first.text == "-" or first.text.startswith("- "):
            return self._sequence(indent)
        if first.text[0] in "[{" or not self._key_end(first):
            self.at += 1
            return self._inline(first.text, first.number)
        return self._mapping(indent)

    def _sequence(self, indent: int) -> Node:
        items: list[Node] = []
        start = self.lines[self.at].number
        while self.at < len(self.lines):
            line = self.lines[self.at]
            dash = line.text == "-" or line.text.startswith("- ")
            if line.indent != indent or not dash:
                break
            rest = line.text[1:].lstrip(" ")
            if not rest:
                self.at += 1
                items.append(self._nested(indent, line.number))
                continue
            inner = indent + len(line.text) - len(rest)
            self.lines[self.at] = _Line(line.number, inner, rest)
            items.append(self._block(inner))
        self._no_deeper(indent)
        return Node(items, start)

    def _mapping(self, indent: int) -> Node:
        pairs: dict[str, Node] = {}
        start = self.lines[self.at].number
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.indent != indent or line.text == "-" or line.text.startswith("- "):
                break
            end = self._key_end(line)
            if not end:
                self.fail(line.number, f"expected `key: value`, not {line.text[:40]!r}")
            key = self._key(line.text[:end], line.number)
            if key in pairs:
                self.fail(
                    line.number,
                    f"{key!r} is given twice",
                    f"it is already on line {pairs[key].line}",
                )
            rest = line.text[end + 1 :].strip(" ")
            self.at += 1
            if rest:
                pairs[key] = self._inline(rest, line.number)
            else:
                pairs[key] = self._nested(indent, line.number, dash_at_same=True)
        self._no_deeper(indent)
        return Node(pairs, start)

    def _nested(self, indent: int, line: int, dash_at_same: bool = False) -> Node:
        """The block below a bare `key:` or `-`; null when there is none."""
        if self.at < len(self.lines):
            below = self.lines[self.at]
            dash = below.text == "-" or below.text.startswith("- ")
            if below.indent > indent or (dash_at_same and below.indent == indent and dash):
                return self._block(below.indent)
        return Node(None, line)

    def _no_deeper(self, indent: int) -> None:
        if self.at < len(self.lines) and self.lines[self.at].indent > indent:
            self.fail(
                self.lines[self.at].number,
                "indented deeper than the line it belongs to",
                "a value of more than one line must be quoted or start under its key",
            )

    def _key_end(self, line: _Line) -> int:
        """The position of the colon of `key:`; 0 when the line is not a mapping entry."""
        text = line.text
        if text[0] in "\"'":
            end = self.quoted(text, 0, line.number)[1]
        else:
            match = _PLAIN.match(text)
            end = match.end() if match else 0
        followed = text[end : end + 1] == ":" and text[end + 1 : end + 2] in ("", " ")
        return end if followed else 0

    def _key(self, text: str, line: int) -> str:
        value = self.scalar(text, line)
        if not isinstance(value, str):
            self.fail(line, f"the key {text} is not text", "quote it")
        return value

    # --- inline values ---------------------------------------------------------------------

    def _inline(self, text: str, line: int) -> Node:
        if text[0] in "[{":
            return _Flow(self, text, line).read()
        return Node(self.scalar(text, line), line)

    def scalar(self, text: str, line: int) -> str | int | bool:
        if text[0] in "\"'":
            value, end = self.quoted(text, 0, line)
            if text[end:].strip():
                self.fail(line, "unexpected text after the closing quote")
            return value
        if _BLOCK_ONLY.match(text) and not _INT.match(text):
            self.fail(
                line,
                f"{text[:20]!r} needs YAML features that this file must not use",
                "no anchors, tags or block text here; quote the value",
            )
        if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
            return text.lower() == "true"
        if _INT.match(text):
            return int(text)
        if text.lower() in _AMBIGUOUS or text.lower() in ("true", "false"):
            self.fail(
                line,
                f"{text} means different things to different tools",
                'write true or false; where text is meant, quote it: "…"',
            )
        if not _SAFE_TEXT.match(text):
            self.fail(
                line,
                f"{text[:40]!r} means different things to different tools",
                'write a number in plain digits, such as 16; where text is meant, quote it: "…"',
            )
        return text

    def quoted(self, text: str, at: int, line: int) -> tuple[str, int]:
        """The string that starts at the quote `text[at]`, and the position after it."""
        quote = text[at]
        if quote == "'":
            match = re.compile(r"'((?:[^'\n]|'')*)'").match(text, at)
            if not match:
                self.fail(line, "a quote is never closed")
            return match.group(1).replace("''", "'"), match.end()
        match = re.compile(r'"(?:[^"\\\n]|\\.)*"').match(text, at)
        if not match:
            self.fail(line, "a quote is never closed")
        if _SURROGATE.search(match.group(0)):
            self.fail(line, "half a character: \\ud800 to \\udfff are none", "write it itself")
        try:
            return str(json.loads(match.group(0))), match.end()
        except ValueError:
            self.fail(line, f"an escape that JSON does not have in {match.group(0)[:40]}")


class _Flow:
    """Reads a `[…]` or `{…}`, whose text has a newline for every line that it spans."""

    def __init__(self, reader: _Reader, text: str, line: int) -> None:
        self.reader, self.text, self.first_line, self.at = reader, text, line, 0

    def read(self) -> Node:
        node = self._value()
        self._skip()
        if self.at < len(self.text):
            self._fail("unexpected text after the closing bracket")
        return node

    def _line(self) -> int:
        return self.first_line + self.text.count("\n", 0, self.at)

    def _fail(self, message: str, hint: str = "") -> NoReturn:
        self.reader.fail(self._line(), message, hint)

    def _skip(self) -> None:
        while self.text[self.at : self.at + 1] in (" ", "\t", "\n"):
            self.at += 1

    def _take(self, expected: str) -> bool:
        self._skip()
        if self.text[self.at : self.at + 1] == expected:
            self.at += 1
            return True
        return False

    def _value(self) -> Node:
        self._skip()
        line = self._line()
        if self._take("["):
            return Node(self._sequence(), line)
        if self._take("{"):
            return Node(self._mapping(), line)
        if self.text[self.at : self.at + 1] in ('"', "'"):
            value, self.at = self.reader.quoted(self.text, self.at, line)
            return Node(value, line)
        match = _PLAIN.match(self.text, self.at)
        if not match:
            self._fail(f"unexpected {self.text[self.at : self.at + 1]!r}", "quote the value")
        self.at = match.end()
        if match.group(0) == "null":  # the only null that JSON has
            return Node(None, line)
        return Node(self.reader.scalar(match.group(0), line), line)

    def _sequence(self) -> list[Node]:
        items: list[Node] = []
        while not self._take("]"):
            if items and not self._take(","):
                self._fail("expected ',' or ']'")
            if items and self._take("]"):
                break
            items.append(self._value())
        return items

    def _mapping(self) -> dict[str, Node]:
        pairs: dict[str, Node] = {}
        while not self._take("}"):
            if pairs and not self._take(","):
                self._fail("expected ',' or '}'")
            if pairs and self._take("}"):
                break
            key = self._value()
            quoted = self.text[self.at - 1 : self.at] in ('"', "'")
            if not isinstance(key.value, str):
                self._fail("a key must be text", "quote it")
            if key.value in pairs:
                self._fail(f"{key.value!r} is given twice")
            if not self._take(":"):
                self._fail(f"expected ':' after {key.value!r}")
            if not quoted and self.text[self.at : self.at + 1] not in (" ", "\t", "\n"):
                self._fail("write a space after the ':'")
            pairs[key.value] = self._value()
        return pairs
