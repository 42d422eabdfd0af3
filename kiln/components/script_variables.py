"""The upper-case variables that a provisioner reads, found in its text before anything is launched.

Bash stops at a variable that nobody set only when it gets there, minutes into a bake. What is
quoted for another program is left out: '$NF' of awk, `\\$X`, a here-document whose end is quoted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kiln.base.errors import KilnError
from kiln.base.overlay import shown_path

# Set by bash, or by any login.
_AMBIENT = re.compile(
    "BASH.*|DEBIAN_FRONTEND|DIRSTACK|EUID|FUNCNAME|GROUPS|HOME|HOSTNAME|HOSTTYPE|IFS|LANG|LC_ALL"
    "|LINENO|LOGNAME|MACHTYPE|NEEDRESTART_MODE|OLDPWD|OPTARG|OPTIND|OSTYPE|PATH|PIPESTATUS|PPID|PWD"
    "|RANDOM|REPLY|SECONDS|SHELL|SHELLOPTS|SHLVL|TERM|TMPDIR|UID|USER"
)
_NAME = "[A-Z][A-Z0-9_]+"
_READ = re.compile(rf"\$(?:({_NAME})|\{{[#!]?({_NAME})(?:\[[^]]*\])?(:?[-=+])?)")
_DOWNLOAD = re.compile(rf"\bkiln_download +({_NAME})")
_ASSIGNED = re.compile(rf"(?<![\w${{#!])({_NAME})(?:\[[^]]*\])?\+?=")
_NAMED = re.compile(
    r"\b(?:for|read|mapfile|readarray|local|declare|typeset|export|readonly|getopts|printf +-v)\b"
    r"([^\n;|&]*)"
)
_WORD = re.compile(rf"(?<![\w$\{{#!]){_NAME}\b")
_SOURCED = re.compile(r"(?:^|[;&|({]|\bthen|\bdo|\belse)[ \t]*(?:source|\.)[ \t]+(\S+)", re.M)
_HERE = re.compile(r"<<(-?)[ \t]*(\\|'|\"|)(\w+)")


@dataclass(frozen=True)
class Reading:
    """Where a script first reads a variable (`line` from 1). `certain`: bash would stop there if
    nobody set it, as it would not for `${NAME:-default}`, nor if another file may have set it.
    `own`: the script sets it itself, as far as its text shows."""

    name: str
    line: int
    certain: bool
    own: bool = False


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


@cache
def readings(script: Path) -> tuple[Reading, ...]:
    """The variables that a script reads, but for those that bash or a login sets."""
    code = _code(script_text(script))
    others = any("lib/kiln.sh" not in path for path in _SOURCED.findall(code))
    apart = others or re.search(r"\beval\b", code) is not None
    own = set(_ASSIGNED.findall(code))
    for words in _NAMED.findall(code):
        own |= set(_WORD.findall(words))
    reads: dict[str, Reading] = {}
    for match in _READ.finditer(code):
        _add(reads, match[1] or match[2], _line(code, match), certain=not (apart or match[3]))
    for match in _DOWNLOAD.finditer(code):
        for part in ("URL", "SHA256"):
            _add(reads, f"{match[1]}_{part}", _line(code, match), certain=not apart)
    return tuple(
        replace(reading, own=reading.name in own)
        for reading in reads.values()
        if not _AMBIENT.fullmatch(reading.name)
    )


def _add(reads: dict[str, Reading], name: str, line: int, *, certain: bool) -> None:
    if name not in reads or (certain and not reads[name].certain):
        reads[name] = Reading(name, line, certain)


def _line(code: str, match: re.Match[str]) -> int:
    return code.count("\n", 0, match.start()) + 1


def _code(text: str) -> str:
    """The text with blanks for what bash does not expand; its lines stay the same."""
    return _Blanked(text).result()


class _Blanked:
    """One pass over a script. `_open` are the ends of the quotes and expansions that are open."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._kept = list(text)
        self._open: list[str] = []
        self._documents: list[tuple[str, bool, bool]] = []

    def result(self) -> str:
        """The whole text, blanked."""
        at = 0
        while at < len(self._text):
            at = self._next(at)
        return "".join(self._kept)

    def _next(self, at: int) -> int:
        """Judge what begins at a place; the place after it."""
        text, sign, after = self._text, self._text[at], at + 1
        if sign == "\\":
            after = self._blank(at, at + 2)
        elif self._open and sign == self._open[-1]:
            self._open.pop()
        elif text.startswith(("$(", "${"), at):
            self._open.append(")" if text[at + 1] == "(" else "}")
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
        elif sign == "(":
            self._open.append(")")
        elif sign == "#" and (at == 0 or text[at - 1] in " \t\n;&|("):
            end = text.find("\n", at)
            after = self._blank(at, end if end >= 0 else len(text))
        elif text.startswith("<<<", at):
            after = at + 3
        elif here := _HERE.match(text, at):
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
        return end
