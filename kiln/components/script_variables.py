"""The upper-case variables that a provisioner reads, found in its text before anything is launched.

Bash stops at a variable that nobody set only when it gets there, minutes into a bake. What is
quoted for another program is left out: '$NF' of awk, `\\$X`, a here-document whose end is quoted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kiln.components.script_syntax import Syntax, node_text, script_syntax

# Set by bash, or by any login.
_AMBIENT = re.compile(
    "BASH.*|DEBIAN_FRONTEND|DIRSTACK|EUID|FUNCNAME|GROUPS|HOME|HOSTNAME|HOSTTYPE|IFS|LANG|LC_ALL"
    "|LINENO|LOGNAME|MACHTYPE|NEEDRESTART_MODE|OLDPWD|OPTARG|OPTIND|OSTYPE|PATH|PIPESTATUS|PPID|PWD"
    "|RANDOM|REPLY|SECONDS|SHELL|SHELLOPTS|SHLVL|TERM|TMPDIR|UID|USER"
)
_NAME = re.compile("[A-Z][A-Z0-9_]+")
_WORD = re.compile(rf"(?<![\w$\{{#!]){_NAME.pattern}\b")
# Commands that set the variables which their words name.
_SETTERS = ("read", "mapfile", "readarray", "getopts")


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
    return _readings(script_syntax(script))


@cache
def _readings(script: Syntax) -> tuple[Reading, ...]:
    named = [node_text(node) for node in script.declarations]
    for command in script.commands:
        words = [word.text for word in command.arguments]
        if command.name in _SETTERS or (command.name == "printf" and words[:1] == ["-v"]):
            named += words
    own = {node_text(node) for node in script.assigned}
    own |= {name for words in named for name in _WORD.findall(words)}
    own |= {expansion.name for expansion in script.expansions if "=" in expansion.operator}
    sourced = [command.sourced.text for command in script.commands if command.sourced]
    others = any("lib/kiln.sh" not in path for path in sourced)
    evaluated = any(command.name == "eval" for command in script.commands)
    apart = others or evaluated or script.has_gaps
    reads: dict[str, Reading] = {}
    for expansion in script.expansions:
        certain = not (apart or expansion.operator) and script.understands(expansion.node)
        _add(reads, Reading(expansion.name, expansion.line, certain))
    for command in script.commands:
        if command.name == "kiln_download" and command.arguments:
            name = command.arguments[0]
            for part in ("URL", "SHA256"):
                _add(reads, Reading(f"{name.text}_{part}", name.line, not apart))
    return tuple(
        replace(reading, own=reading.name in own)
        for reading in reads.values()
        if not _AMBIENT.fullmatch(reading.name)
    )


def _add(reads: dict[str, Reading], reading: Reading) -> None:
    first = reads.get(reading.name)
    if _NAME.fullmatch(reading.name) and (not first or (reading.certain and not first.certain)):
        reads[reading.name] = reading
