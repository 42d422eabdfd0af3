"""Mistakes in a provisioner's commands that bash notices only on the build instance, or never."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kiln.base.errors import nearest
from kiln.base.findings import Finding
from kiln.base.overlay import own_files, provisioner_file, shown_path
from kiln.base.paths import PROVISIONERS, RUNTIME
from kiln.components.script_code import SOURCED, Code, script_code

RULE = "provisioner"

_REDIRECTION = re.compile(
    r"(?:\d+|\{\w+\})?(?:&>>?|<<<|<<-?|<>|<&|>&|>>|>\||<|>)[ \t]*(?:[<>]_+|[^\s<>]+)"
)
# A command of this name, where bash expects one; `[<>]&` and `&>` are not the end of a command.
_COMMAND = re.compile(
    r"(?:^|&&?|\|[|&]?|[;({!)]"
    r"|(?<![^\s;&|(){}])(?:then|do|else|elif|if|while|until|time)(?=[ \t]))"
    r"[ \t]*(?:\w+=\S*[ \t]+)*"
    r"(?P<name>kiln_install_runtime|exec)(?![^\s;&|<>])"
    r"(?P<words>(?:[<>]&|&>|>\||[<>]\(|[^\n;&|()])*)(?P<end>&&?|\|\|?|)",
    re.MULTILINE,
)
_WORD = re.compile(r"\S+")
_LITERAL = re.compile(r"""(['"]?)([\w./@+:,=-]+)\1""")
_BRACE = re.compile(r"(?<![^\s;&|(){}])[{}](?![^\s;&|)])")
_FUNCTION = re.compile(r"(?:\(\)|\bfunction[ \t]+\S+)[ \t\n]*$")


def command_problems(component: str) -> list[Finding]:
    """Errors in the commands of a component's script, each with its line: files of the image that
    nobody has, an `exec` that replaces the script, no library. What is only known on the build
    instance, such as a name with a variable, is not judged. Raises KilnError for a file that is not
    UTF-8.
    """
    script = provisioner_file(component)
    code = script_code(script)
    return [*_alone(script, code), *_missing_files(script, code), *_replaced(script, code)]


def _alone(script: Path, code: Code) -> Iterator[Finding]:
    # Ours that has no library says why. Another file that a script sources may source it.
    if not (PROVISIONERS / script.name).exists() and not SOURCED.search(code.expanded):
        message = "the script does not source the library, so nothing records what it did"
        yield _finding(script, 1, message, 'begin it with source "${KILN_DIR:?}/lib/kiln.sh"')


def _missing_files(script: Path, code: Code) -> Iterator[Finding]:
    # A script that makes such files itself is not judged.
    if re.search(r"KILN_DIR\}?\"?/runtime", code.text):
        return
    tops = [RUNTIME, *own_files("runtime")]
    for match in commands_named(code, "kiln_install_runtime"):
        for word in _WORD.finditer(code.commands, *match.span("words")):
            literal = _LITERAL.fullmatch(code.text[slice(*word.span())])
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
                yield _finding(script, code.line(word.start()), message, hint)


def _replaced(script: Path, code: Code) -> Iterator[Finding]:
    functions = _functions(code.commands)
    for match in commands_named(code, "exec"):
        before = code.commands[: match.start("name")].rstrip()
        piped = before.endswith(("|", "|&")) and not before.endswith("||")
        in_the_background = piped or match["end"] in ("&", "|")
        words = _REDIRECTION.sub("", match["words"]).strip()
        # Functions may be called where another shell runs them: in `$(…)`, in a pipe.
        if in_the_background or not words or any(match.start() in span for span in functions):
            continue
        written = " ".join(code.text[slice(*match.span("words"))].split())
        yield _finding(
            script,
            code.line(match.start("name")),
            f"`exec {written}` replaces the script: nothing after it runs, what the component "
            "records is lost, and a failure is not reported",
            f"write `{written}`, without exec",
        )


def commands_named(code: Code, name: str) -> Iterator[re.Match[str]]:
    """The commands of this name in a script, with their `words`."""
    return (match for match in _commands(code) if match["name"] == name)


# Of a script's text alone: a matrix asks about each script once for each row.
@cache
def _commands(code: Code) -> tuple[re.Match[str], ...]:
    return tuple(_COMMAND.finditer(code.commands))


@cache
def _functions(commands: str) -> list[range]:
    """Where the functions of a script are."""
    spans = []
    opened: list[tuple[int, bool]] = []
    for brace in _BRACE.finditer(commands):
        if brace[0] == "{":
            is_function = _FUNCTION.search(commands, max(0, brace.start() - 200), brace.start())
            opened.append((brace.start(), is_function is not None))
        elif opened:
            start, of_function = opened.pop()
            if of_function:
                spans.append(range(start, brace.end()))
    return spans


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
