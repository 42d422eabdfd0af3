"""What a failed check says, for a reader who knows neither pytest nor testinfra.

pytest explains an assertion by the values in it. Of those that are objects of the checks' own
library it prints how they are made, as `<class 'testinfra.modules.base.SystemdService'>`, and of a
plain `assert host.file(…).exists` no more than that it is False.
"""

from __future__ import annotations

import ast
import re

from kiln.facts.program_messages import message as message_of

_LONGEST = 300
_MOST_LINES = 30
_ASSERTION = re.compile(r"^AssertionError: ")
# An assertion whose values say nothing: what it asserted is in its statement.
_MUTE = re.compile(r"assert (?:not )?\(?(?:True|False|None)\)?$")
_BYTES = r"""(b?'(?:[^'\\]|\\.)*'|b?"(?:[^"\\]|\\.)*")"""
# github:pytest-dev/pytest-testinfra testinfra/backend/base.py@10.2.2 (CommandResult)
_RESULT = re.compile(
    r"CommandResult\(backend=<[^>]*>, exit_status=(-?\d+), "
    rf"command={_BYTES}, _stdout={_BYTES}, _stderr={_BYTES}\)"
)
_OBJECT = re.compile(r"<(?:[\w.]+\.)?(\w+) object at 0x[0-9a-f]+>")
# How an object was made, and one that cannot be read.
_INSIDE = re.compile(r"<class '|<testinfra\.|CommandResult\(| at 0x[0-9a-f]+>| = run\(.*\)$")
_MARKS = re.compile(r"[\s^~]*")


def readable(message: str, traceback: str = "") -> str:
    """A message of pytest without the insides of its library; a mute assertion as its statement,
    which stands in the traceback."""
    if message_of("pytest", "shortened").search(message):
        message = _explanation(traceback) or message
    lines = _RESULT.sub(_command, _ASSERTION.sub("", message)).splitlines()
    first, rest = lines[:1], lines[1:]
    kept = [line for line in rest if not (_INSIDE.search(line) or _MUTE.match(line))]
    unexplained = rest and not kept and lines[0].startswith("assert ")
    if lines and (unexplained or _MUTE.match(lines[0])):
        first = [_statement(traceback) or lines[0]]
    if len(kept) > _MOST_LINES:
        kept = [*kept[:_MOST_LINES], "…"]
    return "\n".join(_OBJECT.sub(r"<\1>", line) for line in [*first, *kept]).strip()


def _command(match: re.Match[str]) -> str:
    """A command on the machine, how it ended and what it printed."""
    status, *texts = match.groups()
    values = (ast.literal_eval(text) for text in texts)
    command, output, errors = (
        (text if isinstance(text, str) else text.decode(errors="replace")).strip()
        for text in values
    )
    printed = errors or output
    return f"`{command}` (exit status {status}{f': {printed}' if printed else ''})"


def _explanation(traceback: str) -> str:
    """The whole message of which pytest has shortened a copy; "" if the traceback has none."""
    lines = [line for line in traceback.splitlines() if re.match(r"E(?: |$)", line)]
    if not lines:
        return ""
    indent = len(lines[0]) - len(lines[0][1:].lstrip())
    return "\n".join(line[indent:] for line in lines)


def _statement(traceback: str) -> str:
    """The statement that failed, in one line; "" if the traceback has none."""
    lines = traceback.splitlines()
    begins = [index for index, line in enumerate(lines) if line.startswith(">")]
    if not begins:
        return ""
    statement = [lines[begins[-1]][1:]]
    for line in lines[begins[-1] + 1 :]:
        if line.startswith("E "):
            break
        statement.append(line)
    text = " ".join(part.strip() for part in statement if not _MARKS.fullmatch(part))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
