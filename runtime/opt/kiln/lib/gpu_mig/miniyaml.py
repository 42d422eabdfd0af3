"""A strict reader for the YAML that mig-parted's configuration uses, with a line for every value.

PyYAML is not on the AMI. The subset: block mappings and sequences, flow collections (so JSON too),
comments, quoted strings, and plain scalars whose type nobody can doubt. What YAML 1.1 and 1.2 read
differently (`yes`, `0x10`, `1:20`, `1e3`, `~`), anchors, tags and block scalars are refused with
the advice to quote: a reader that guesses would slice a GPU by its guess.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, NamedTuple

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
_INT = re.compile(r"^(0|-?[1-9][0-9]{0,17})$")  # longer ones must be quoted
# Letters or signs first, or a digit followed by something that keeps it from being a number.
_SAFE_TEXT = re.compile(
    r"^[A-Za-z_/][A-Za-z0-9_.+/@=-]*( [A-Za-z0-9_.+/@=-]+)*$|^[0-9]+[cg]\.[0-9a-z.+-]+$"
)
_AMBIGUOUS = frozenset("yes no on off y n null".split())
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_BLOCK_ONLY = re.compile(r"^(-|[|>&*!%@`?])")


def loads(text, source="<string>"):
    """`text` as a Node tree. Raises MigError with `source`:line."""
    try:
        return _Reader(text, source).document()
    except RecursionError:
        raise MigError("{}: nested too deeply to be a MIG configuration".format(source)) from None


def plain(node):
    """The tree without its line numbers: dict, list, str, int, bool, None."""
    if isinstance(node.value, dict):
        return {k: plain(v) for k, v in node.value.items()}
    if isinstance(node.value, list):
        return [plain(v) for v in node.value]
    return node.value


class _Reader:
    def __init__(self, text, source):
        self.source = source
        self.lines: List[_Line] = []
        self.at = 0
        self._split(text)

    def fail(self, line, message, hint=""):
        raise MigError("{}:{}: {}".format(self.source, line, message), hint)

    # --- lines -----------------------------------------------------------------------------

    def _split(self, text):
        depth, started = 0, False
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.rstrip("\r")
            if _FORBIDDEN.search(line):
                self.fail(number, "a control character", "the file must be plain text.")
            if line.strip() in ("---", "...") and not line.startswith(" "):
                if line.strip() == "---" and not started:
                    started = True
                    continue
                self.fail(number, "a second document", "put everything in one document.")
            if line.startswith("%"):
                self.fail(number, "a directive", "remove it.")
            body, depth_after = self._strip_comment(line, number, depth)
            if body.strip():
                started = True
                if "\t" in body[: len(body) - len(body.lstrip())]:
                    self.fail(number, "a tab in the indentation", "indent with spaces.")
                indent = len(body) - len(body.lstrip(" "))
                if depth:
                    joined = self.lines[-1]
                    self.lines[-1] = joined._replace(text=joined.text + "\n" + body.strip())
                else:
                    self.lines.append(_Line(number, indent, body.strip()))
            elif depth:
                joined = self.lines[-1]
                self.lines[-1] = joined._replace(text=joined.text + "\n")
            depth = depth_after
        if depth:
            self.fail(self.lines[-1].number, "a bracket is never closed")

    def _strip_comment(self, line, number, depth):
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
                    self.fail(number, "a closing {!r} without its opening".format(c))
            i += 1
        if quote:
            self.fail(number, "a quote is never closed", "strings must end on their own line.")
        return line, depth

    # --- block style -----------------------------------------------------------------------

    def document(self):
        if not self.lines:
            return Node(None, 1)
        root = self._block(self.lines[0].indent)
        if self.at < len(self.lines):
            self.fail(self.lines[self.at].number, "wrong indentation")
        return root

    def _block(self, indent):
        first = self.lines[self.at]
        if first.text == "-" or first.text.startswith("- "):
            return self._sequence(indent)
        if first.text[0] in "[{" or not self._key_end(first):
            self.at += 1
            return self._inline(first.text, first.number)
        return self._mapping(indent)

    def _sequence(self, indent):
        items, start = [], self.lines[self.at].number
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

    def _mapping(self, indent):
        pairs, start = {}, self.lines[self.at].number
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.indent != indent or line.text == "-" or line.text.startswith("- "):
                break
            end = self._key_end(line)
            if not end:
                self.fail(line.number, "expected `key: value`, found {!r}".format(line.text[:40]))
            key = self._key(line.text[:end], line.number)
            if key in pairs:
                self.fail(
                    line.number,
                    "{!r} is given twice".format(key),
                    "it is already on line {}.".format(pairs[key].line),
                )
            rest = line.text[end + 1 :].strip(" ")
            self.at += 1
            if rest:
                pairs[key] = self._inline(rest, line.number)
            else:
                pairs[key] = self._nested(indent, line.number, dash_at_same=True)
        self._no_deeper(indent)
        return Node(pairs, start)

    def _nested(self, indent, line, dash_at_same=False):
        """The block below a bare `key:` or `-`; null when there is none."""
        if self.at < len(self.lines):
            below = self.lines[self.at]
            dash = below.text == "-" or below.text.startswith("- ")
            if below.indent > indent or (dash_at_same and below.indent == indent and dash):
                return self._block(below.indent)
        return Node(None, line)

    def _no_deeper(self, indent):
        if self.at < len(self.lines) and self.lines[self.at].indent > indent:
            self.fail(
                self.lines[self.at].number,
                "indented deeper than the line it belongs to",
                "a value of more than one line must be quoted or start under its key.",
            )

    def _key_end(self, line):
        """Where the colon of `key:` is; 0 when the line is no mapping entry."""
        text = line.text
        if text[0] in "\"'":
            end = self.quoted(text, 0, line.number)[1]
        else:
            match = _PLAIN.match(text)
            end = match.end() if match else 0
        followed = text[end : end + 1] == ":" and text[end + 1 : end + 2] in ("", " ")
        return end if followed else 0

    def _key(self, text, line):
        value = self.scalar(text, line)
        if not isinstance(value, str):
            self.fail(line, "the key {} is not text".format(text), "quote it.")
        return value

    # --- inline values ---------------------------------------------------------------------

    def _inline(self, text, line):
        if text[0] in "[{":
            return _Flow(self, text, line).read()
        return Node(self.scalar(text, line), line)

    def scalar(self, text, line):
        if text[0] in "\"'":
            value, end = self.quoted(text, 0, line)
            if text[end:].strip():
                self.fail(line, "something follows the closing quote")
            return value
        if _BLOCK_ONLY.match(text) and not _INT.match(text):
            self.fail(
                line,
                "{!r} needs YAML this file may not use".format(text[:20]),
                "no anchors, tags or block text here; quote the value.",
            )
        if text in ("true", "false"):
            return text == "true"
        if _INT.match(text):
            return int(text)
        if text.lower() in _AMBIGUOUS or text.lower() in ("true", "false"):
            self.fail(
                line,
                "{} is read differently by different tools".format(text),
                "write true or false, or quote the text.",
            )
        if not _SAFE_TEXT.match(text):
            self.fail(
                line,
                "{!r} must be quoted".format(text[:40]),
                'write it as "…": unquoted, tools disagree on what it is.',
            )
        return text

    def quoted(self, text, at, line):
        """The string starting at the quote `text[at]`, and where it ends."""
        quote = text[at]
        if quote == "'":
            match = re.compile(r"'((?:[^'\n]|'')*)'").match(text, at)
            if not match:
                self.fail(line, "a quote is never closed")
            return match.group(1).replace("''", "'"), match.end()
        match = re.compile(r'"(?:[^"\\\n]|\\.)*"').match(text, at)
        if not match:
            self.fail(line, "a quote is never closed")
        try:
            return json.loads(match.group(0)), match.end()
        except ValueError:
            self.fail(line, "an escape JSON does not know in {}".format(match.group(0)[:40]))


class _Flow:
    """Reads one `[…]` or `{…}`; its text keeps a newline for every line it spans."""

    def __init__(self, reader, text, line):
        self.reader, self.text, self.first_line, self.at = reader, text, line, 0

    def read(self):
        node = self._value()
        self._skip()
        if self.at < len(self.text):
            self._fail("something follows the closing bracket")
        return node

    def _line(self):
        return self.first_line + self.text.count("\n", 0, self.at)

    def _fail(self, message, hint=""):
        self.reader.fail(self._line(), message, hint)

    def _skip(self):
        while self.text[self.at : self.at + 1] in (" ", "\t", "\n"):
            self.at += 1

    def _take(self, expected):
        self._skip()
        if self.text[self.at : self.at + 1] == expected:
            self.at += 1
            return True
        return False

    def _value(self):
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
            self._fail(
                "unexpected {!r}".format(self.text[self.at : self.at + 1]), "quote the value."
            )
        self.at = match.end()
        if match.group(0) == "null":  # JSON has this word and nothing else for it
            return Node(None, line)
        return Node(self.reader.scalar(match.group(0), line), line)

    def _sequence(self):
        items: List[Node] = []
        while not self._take("]"):
            if items and not self._take(","):
                self._fail("expected ',' or ']'")
            if items and self._take("]"):
                break
            items.append(self._value())
        return items

    def _mapping(self):
        pairs: Dict[str, Node] = {}
        while not self._take("}"):
            if pairs and not self._take(","):
                self._fail("expected ',' or '}'")
            if pairs and self._take("}"):
                break
            key = self._value()
            quoted = self.text[self.at - 1 : self.at] in ('"', "'")
            if not isinstance(key.value, str):
                self._fail("a key must be text", "quote it.")
            if key.value in pairs:
                self._fail("{!r} is given twice".format(key.value))
            if not self._take(":"):
                self._fail("expected ':' after {!r}".format(key.value))
            if not quoted and self.text[self.at : self.at + 1] not in (" ", "\t", "\n"):
                self._fail("write a space after the ':'")
            pairs[key.value] = self._value()
        return pairs
