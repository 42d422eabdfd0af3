"""JSON that remembers where each value stands, so that a finding can name line and column."""

from __future__ import annotations

import bisect
import json
import re
from typing import Any

from kiln.base.errors import KilnError
from kiln.base.findings import Place
from kiln.base.located import Located, Mark, Path_

_TOKEN = re.compile(r'[][{}:,]|"(?:[^"\\]|\\.)*"|[^][{}:,"\s]+')


def locate_json(text: str, name: str) -> Located:
    """JSON with its places; `name` is how errors call the file.

    Raises ValueError or RecursionError as json.loads does, KilnError (exit status 2) for a
    duplicate key, of which a program would take the last.
    """
    data = json.loads(text)
    lines = [0, *(match.end() for match in re.finditer("\n", text))]
    values: dict[Path_, Mark] = {}
    keys: dict[Path_, Mark] = {}
    path: list[Any] = []  # of the value that is being read: keys, and numbers of a list's items
    within: list[str] = []  # { or [ for each part of the path
    before_key = False
    for token in _TOKEN.finditer(text):
        line = bisect.bisect(lines, token.start())
        mark = (line, token.start() - lines[line - 1] + 1)
        word = token[0]
        if word in ("}", "]"):
            within.pop()
            path.pop()
        elif word == ",":
            before_key = within[-1] == "{"
            path[-1] = None if before_key else path[-1] + 1
        elif before_key:
            before_key = False
            path[-1] = json.loads(word)
            if tuple(path) in keys:
                first = keys[tuple(path)]
                raise _duplicate(path[-1], first, Place(name, *mark))
            keys[tuple(path)] = mark
        elif word != ":":
            values[tuple(path)] = mark
            before_key = word == "{"
            if word in ("{", "["):
                within.append(word)
                path.append(None if before_key else 0)
        if word == "}":
            before_key = False  # of an empty object
    return Located(name, data, values, keys)


def _duplicate(key: str, first: Mark, place: Place) -> KilnError:
    line, column = first
    return KilnError(
        f"{place}: {key!r} is a duplicate key (first at line {line}, column {column})",
        hint="keep one of them",
        place=place,
    )
