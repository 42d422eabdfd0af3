"""Mistakes in a provisioner's commands that bash notices only on the build instance, or never."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kiln.base.errors import nearest
from kiln.base.findings import Finding
from kiln.base.overlay import overlays, own_files, provisioner_file, shown_path
from kiln.base.paths import PROVISIONERS, RUNTIME
from kiln.components.script_exec import replacing
from kiln.components.script_syntax import Command, Syntax, parsed, script_text

RULE = "provisioner"

_UPLOADED_FILES = re.compile(r"KILN_DIR(?::\?[^}]*)?\}?\"?/files")
_UPLOADED = re.compile(r"KILN_DIR(?::\?[^}]*)?\}?\"?/runtime")
_LITERAL = re.compile(r"""(['"]?)([\w./@+:,=-]+)\1""")


def command_problems(component: str) -> list[Finding]:
    """Errors in the commands of a component's script, each with its line: files of the image that
    nobody has, an `exec` that replaces the script, no library. What is only known on the build
    instance, such as a name with a variable, is not judged. Raises KilnError for a file that is not
    UTF-8.
    """
    script = provisioner_file(component)
    return list(_problems(script, script_text(script), overlays()))


def rendered_file_problems(component: str, names: frozenset[str]) -> list[Finding]:
    """Errors where a component's script installs files that are not rendered for the image; `names`
    are those that are. A command that may not run, for this image, is not judged. Raises what
    `command_problems` raises."""
    script = provisioner_file(component)
    return list(_not_rendered(script, script_text(script), names, overlays()))


# The rows of a matrix have few different sets of files.
@cache
def _not_rendered(
    script: Path, content: str, names: frozenset[str], _overlays: tuple[Path, ...]
) -> tuple[Finding, ...]:
    syntax = parsed(content)
    # A script that makes such files itself is not judged.
    if syntax.has_gaps or _UPLOADED_FILES.search(content):
        return ()
    return tuple(_files_not_rendered(script, syntax, names))


def _files_not_rendered(script: Path, syntax: Syntax, names: frozenset[str]) -> Iterator[Finding]:
    tops = own_files("runtime")
    for command in syntax.commands:
        if command.name in ("exit", "return") and [word.text for word in command.arguments] in (
            [],
            ["0"],
        ):
            return
        if command.name != "kiln_install_files" or not _is_always_run(syntax, command):
            continue
        for word in command.arguments:
            literal = _LITERAL.fullmatch(word.text)
            name = literal[2].rstrip("/") if literal else ""
            if not name or any(f"{each}/".startswith(f"{name}/") for each in names):
                continue
            message = f"kiln_install_files {name}: no such file is rendered for the image"
            if name.startswith("/"):
                message = f"kiln_install_files {name}: the path begins with /"
                hint = f"write it without: {name.lstrip('/')}"
            elif any((top / name).exists() for top in [RUNTIME, *tops]):
                hint = f"it is in runtime/: kiln_install_runtime {name}"
            else:
                close = nearest(name, names, likeness=0.8)
                hint = f"did you mean {close}? " if close else ""
                hint += "Files come from files(recipe) of a component in Python"
            yield _finding(script, word.line, message, hint)


def _is_always_run(syntax: Syntax, command: Command) -> bool:
    """Does nothing decide whether the command runs?"""
    outer = command.node.parent
    if outer and outer.type == "redirected_statement":
        outer = outer.parent
    return outer is not None and outer.type == "program" and syntax.understands(command.node)


# Each row of a matrix asks for its components.
@cache
def _problems(script: Path, content: str, _overlays: tuple[Path, ...]) -> tuple[Finding, ...]:
    syntax = parsed(content)
    return (*_alone(script, syntax), *_missing_files(script, content, syntax), *_replaced(script))


def _alone(script: Path, syntax: Syntax) -> Iterator[Finding]:
    sources = syntax.has_gaps or any(command.sourced for command in syntax.commands)
    # Ours that has no library says why. Another file that a script sources may source it.
    if not (PROVISIONERS / script.name).exists() and not sources:
        message = "the script does not source the library, so nothing records what it did"
        yield _finding(script, 1, message, 'begin it with source "${KILN_DIR:?}/lib/kiln.sh"')


def _missing_files(script: Path, content: str, syntax: Syntax) -> Iterator[Finding]:
    sourced = [command.sourced.text for command in syntax.commands if command.sourced]
    # A script that makes such files itself is not judged.
    if len(_UPLOADED.findall(content)) > sum(len(_UPLOADED.findall(name)) for name in sourced):
        return
    tops = [RUNTIME, *own_files("runtime")]
    for command in syntax.commands:
        if command.name != "kiln_install_runtime" or not syntax.understands(command.node):
            continue
        for word in command.arguments:
            literal = _LITERAL.fullmatch(word.text)
            if literal is None:
                continue
            name = literal[2]
            message = hint = ""
            if name.startswith("/"):
                message = f"kiln_install_runtime {name}: the path begins with /"
                hint = f"write it as below runtime/: {name.lstrip('/')}"
            elif not any((top / name).exists() for top in tops):
                message = f"kiln_install_runtime {name}: no runtime/ has this file or folder"
                close = nearest(name, _shipped(*tops), likeness=0.8)
                hint = f"did you mean {close}? " if close else ""
                hint += f"A new one is {_place(script)}/{name}"
            if message:
                yield _finding(script, word.line, message, hint)


def _replaced(script: Path) -> Iterator[Finding]:
    for each in replacing(script):
        yield _finding(
            each.file,
            each.line,
            f"`exec {each.command}` replaces the script{each.way}: nothing after it runs, what "
            "the component records is lost, and a failure is not reported",
            f"write `{each.command}`, without exec",
        )


@cache
def _shipped(*tops: Path) -> tuple[str, ...]:
    return tuple(path.relative_to(top).as_posix() for top in tops for path in top.rglob("*"))


def _place(script: Path) -> str:
    """The runtime/ that belongs to a script."""
    if script.is_relative_to(PROVISIONERS):
        return "runtime"
    return shown_path(script.parents[1] / "runtime")


def _finding(script: Path, line: int, message: str, hint: str) -> Finding:
    return Finding("error", RULE, message, hint, file=shown_path(script), line=line)
