"""The upper-case variables that a provisioner reads, found in its text before anything is launched.

Bash stops at a variable that nobody set only when it gets there, minutes into a bake. What is
quoted for another program is left out: '$NF' of awk, `\\$X`, a here-document whose end is quoted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kiln.components.script_code import SOURCED, Code, script_code

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


@dataclass(frozen=True)
class Reading:
    """Where a script first reads a variable (`line` from 1). `certain`: bash would stop there if
    nobody set it, as it would not for `${NAME:-default}`, nor if another file may have set it.
    `own`: the script sets it itself, as far as its text shows."""

    name: str
    line: int
    certain: bool
    own: bool = False


def readings(script: Path) -> tuple[Reading, ...]:
    """The variables that a script reads, but for those that bash or a login sets."""
    return _readings(script_code(script))


@cache
def _readings(parsed: Code) -> tuple[Reading, ...]:
    code = parsed.expanded
    others = any("lib/kiln.sh" not in path for path in SOURCED.findall(code))
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
