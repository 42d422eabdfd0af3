"""Each `exec COMMAND` that replaces a provisioner: its own, those of functions that it calls, and
those of an overlay's files that it sources.

What bash runs in a shell of its own (`(…)`, `$(…)`, a pipe, `&`) replaces nothing. A call or a file
whose name is known only on the build instance is not followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.overlay import own_files, shown_path
from kiln.components.script_syntax import Command, Syntax, around, node_text, parsed

if TYPE_CHECKING:
    from tree_sitter import Node

_OTHER_SHELLS = ("subshell", "command_substitution", "process_substitution", "pipeline")
# A file below runtime/, where it is uploaded and where it lands.
_BELOW_RUNTIME = re.compile(
    r"(?:\$(?:KILN_DIR|\{KILN_DIR(?::\?[^}]*)?\})/runtime)?/([\w./@+:,=-]+)"
)


@dataclass(frozen=True)
class Exec:
    """An `exec`: where it is, its command, and the way from the script to it, which continues the
    words "the script"."""

    file: Path
    line: int
    command: str
    way: str


@dataclass(frozen=True)
class _Step:
    """What the script itself does to get somewhere: it "calls" a function or "sources" a file."""

    verb: str
    target: str
    line: int


@dataclass(frozen=True)
class _Scope:
    """A function of a file, or what the file has outside of its functions."""

    file: Path
    function: Node | None = None


def replacing(script: Path) -> Iterator[Exec]:
    """Each `exec` of a command that bash gets to from a script, in the script's own shell."""
    files = _files(script)
    functions = {
        _Scope(file, node): node_text(node.children_by_field_name("name")[0])
        for file, syntax in files.items()
        for node in syntax.functions
    }
    names = {"exec", "source", ".", *functions.values()}
    called: dict[str, _Step] = {}
    steps: dict[_Scope, _Step | None] = {_Scope(script): None}
    waiting = list(steps)
    while waiting:
        scope = waiting.pop(0)
        reached: dict[_Scope, _Step] = {}
        for command in files[scope.file].commands:
            if command.name not in names or not _is_run_by(scope.function, command):
                continue
            line, step = command.words[0].line, steps[scope]
            if command.name == "exec" and command.arguments:
                way = _way(script, scope.file, step)
                yield Exec(scope.file, line, command.written.removeprefix("exec "), way)
            elif file := _own_file(command):
                reached[_Scope(file)] = step or _Step("sources", shown_path(file), line)
            else:
                called.setdefault(command.name, step or _Step("calls", command.name, line))
        reached |= {scope: called[name] for scope, name in functions.items() if name in called}
        waiting += [new for new in reached if new not in steps]
        steps = {**reached, **steps}


def _files(script: Path) -> dict[Path, Syntax]:
    """A script, and the files of overlays that are sourced from it on, wherever in them."""
    files: dict[Path, Syntax] = {}
    waiting = [script]
    while waiting:
        file = waiting.pop()
        files[file] = parsed(file.read_text("utf-8", "replace"))
        sourced = map(_own_file, files[file].commands)
        waiting += [path for path in sourced if path and path not in files]
    return files


def _is_run_by(function: Node | None, command: Command) -> bool:
    """Is a command directly of this function, or of none, and run in the shell that is there?"""
    for outer in around(command.node):
        following = outer.next_sibling
        in_the_background = following is not None and following.type == "&"
        if outer.type in _OTHER_SHELLS or outer.is_error or in_the_background:
            return False
        if outer.type == "function_definition":
            return outer == function
    return function is None


def _own_file(command: Command) -> Path | None:
    """The file of an overlay that a command sources, if its name is known before the bake."""
    written = command.sourced.text.replace('"', "") if command.sourced else ""
    match = _BELOW_RUNTIME.fullmatch(written)
    files = [path for path in own_files(f"runtime/{match[1]}") if path.is_file()] if match else []
    return files[-1] if files else None


def _way(script: Path, file: Path, step: _Step | None) -> str:
    if step is None:
        return ""
    target = "this file" if step.target == shown_path(file) else step.target
    subject = "" if file == script else f" {shown_path(script)}"
    return f"{subject}, which {step.verb} {target} in line {step.line}"
