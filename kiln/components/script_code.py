"""A provisioner's text without what is not code: what bash expands in it, and its commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kiln.base.errors import KilnError
from kiln.base.overlay import shown_path

# A command that sources a file, and the file.
SOURCED = re.compile(r"(?:^|[;&|({]|\bthen|\bdo|\belse)[ \t]*(?:source|\.)[ \t]+(\S+)", re.M)
# On one line, as everybody writes it; two subshells begin with the same brackets.
_ARITHMETIC = re.compile(r"\(\((?:[^()\n]|\([^()\n]*\))*\)\)")
_HERE = re.compile(r"<<(-?)[ \t]*(\\|'|\"|)(\w+)")
# Where something may begin or end that is quoted, expanded or left out.
_SIGN = re.compile(r"[\\\"'$(){}#<\n]")


@dataclass(frozen=True)
class Code:
    """A script's text in three forms of the same length.

    `expanded` has blanks for what bash does not expand. In `commands` what is inside of quotes,
    `$(...)`, `${...}` and `(...)` is `_`; comments, here-documents and continued lines' ends are
    blanks.
    """

    text: str
    expanded: str
    commands: str

    def line(self, at: int) -> int:
        """The line (from 1) of a place."""
        return self.text.count("\n", 0, at) + 1


def script_code(script: Path) -> Code:
    """The code of a script. Raises what `script_text` raises."""
    return parsed(script_text(script))


@cache
def parsed(text: str) -> Code:
    """The code of a script's text."""
    return _Blanked(text).result()


def script_text(script: Path) -> str:
    """A script's text. Raises KilnError (exit status 2) with file and line if it is not UTF-8."""
    content = script.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise KilnError(
            f"{shown_path(script)}:{line}: byte {content[error.start]:#04x} is not UTF-8",
            hint=r"save the file as UTF-8, or write the byte as $'\x..'",
        ) from None


class _Blanked:
    """One pass over a script. `_open` are the ends of the quotes, expansions and brackets that are
    open; `_BRACKET` is that of a plain `(`."""

    _BRACKET = ")"
    # Another text than `)` for the end of `$(` and `<(`, whose brackets are part of a word.
    _EXPANSION = "$)"

    def __init__(self, text: str) -> None:
        self._text = text
        self._kept = list(text)
        self._commands = list(text)
        self._open: list[str] = []
        self._documents: list[tuple[str, bool, bool]] = []

    def result(self) -> Code:
        """The whole text, blanked."""
        at = 0
        while sign := _SIGN.search(self._text, at):
            self._plain(at, sign.start())
            at, before = sign.start(), list(self._open)
            after = self._next(at)
            outermost = before + self._open
            if outermost and outermost != [self._BRACKET]:
                self._mask(at, after)
            at = after
        self._plain(at, len(self._text))
        return Code(self._text, "".join(self._kept), "".join(self._commands))

    def _next(self, at: int) -> int:
        """Judge what begins at a place; the place after it."""
        text, sign, after = self._text, self._text[at], at + 1
        if sign == "\\":
            after = self._blank(at, at + 2)
            if text.startswith("\\\n", at):
                self._commands[at:after] = "  "
            else:
                self._mask(at, after)
        elif self._open and text.startswith(self._open[-1].removeprefix("$"), at):
            after = at + len(self._open.pop().removeprefix("$"))
        elif sign == "$" and _ARITHMETIC.match(text, at + 1):
            self._open.append("))")
            after = at + 3
        elif text.startswith(("$(", "${"), at):
            self._open.append(self._EXPANSION if text[at + 1] == "(" else "}")
            after = at + 2
        elif sign == '"':
            self._open.append('"')
        elif not self._quoted():
            after = self._unquoted(at)
        return after

    def _unquoted(self, at: int) -> int:
        """Judge what begins at a place outside of double quotes; the place after it."""
        text, sign, after = self._text, self._text[at], at + 1
        if sign == "'":
            after = self._blank(at, self._end_of_quote(at))
            self._mask(at, after)
        elif _ARITHMETIC.match(text, at):
            self._open.append("))")
            after = at + 2
        elif sign == "(":
            within_word = at > 0 and text[at - 1] in "<>=+@?*!"
            self._open.append(self._EXPANSION if within_word else self._BRACKET)
        elif sign == "#" and (at == 0 or text[at - 1] in " \t\n;&|("):
            end = text.find("\n", at)
            after = self._blank(at, end if end >= 0 else len(text))
            self._commands[at:after] = " " * (after - at)
        elif text.startswith("<<<", at):
            after = at + 3
        elif (here := _HERE.match(text, at)) and "))" not in self._open[-1:]:
            self._documents.append((here[3], bool(here[2]), bool(here[1])))
            after = here.end() + (1 if here[2] in ("'", '"') else 0)
        elif sign == "\n" and self._documents:
            after = self._skip_documents(at + 1)
        return after

    def _quoted(self) -> bool:
        """Whether a single quote is a plain character here: in "…", and in "${…}"."""
        for end in reversed(self._open):
            if end != "}":
                return end == '"'
        return False

    def _end_of_quote(self, at: int) -> int:
        escapes = at > 0 and self._text[at - 1] == "$"
        pattern = r"'(?:\\.|[^'\\])*'" if escapes else r"'[^']*'"
        match = re.compile(pattern, re.DOTALL).match(self._text, at)
        return match.end() if match else len(self._text)

    def _skip_documents(self, at: int) -> int:
        """Blank the here-documents that begin here and are not expanded; the place after them."""
        for word, literal, tabs in self._documents:
            while at < len(self._text):
                end = self._text.find("\n", at)
                end = end if end >= 0 else len(self._text)
                line = self._text[at:end]
                self._commands[at:end] = " " * (end - at)
                if literal:
                    self._blank(at, end)
                else:
                    for escaped in re.finditer(r"\\.", line):
                        self._blank(at + escaped.start(), at + escaped.end())
                at = end + 1
                if (line.lstrip("\t") if tabs else line) == word:
                    break
        self._documents = []
        return at

    def _blank(self, start: int, end: int) -> int:
        for at in range(start, min(end, len(self._text))):
            if self._text[at] != "\n":
                self._kept[at] = " "
        return min(end, len(self._text))

    def _plain(self, start: int, end: int) -> None:
        """Mask text without a sign if it is inside of something."""
        if self._open:
            self._mask(start, end)

    def _mask(self, start: int, end: int) -> None:
        self._commands[start:end] = "_" * (end - start)
