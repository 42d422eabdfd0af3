"""What in `amis.yaml` violates its schema: where, what is wrong, and the nearest valid value."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ValidationError

from kiln.base import vocabulary
from kiln.base.errors import did_you_mean
from kiln.base.findings import Finding
from kiln.base.located import Located, Path_, dotted
from kiln.matrix.account import Aws, SubnetChoice
from kiln.matrix.mistakes import mistake, refused
from kiln.matrix.publishing import LaunchTemplate, Publish, Share, Sign
from kiln.matrix.schema import (
    AcceptModel,
    DistroModel,
    MatrixModel,
    RowModel,
    RowSettings,
    SourceAmiModel,
    StackFields,
    VolumeModel,
)
from kiln.telemetry.settings import Telemetry


def validated(document: Located, *, needs_stacks: bool = True) -> MatrixModel:
    """The matrix in a YAML document; an overlay's needs no `stacks`.

    Raises KilnError (exit status 2) with one line and one finding per mistake; each line begins
    with file:line:column.
    """
    if not isinstance(document.data, dict):
        what = "the matrix is not a mapping: it needs `stacks` and `amis`, see docs/matrix.md"
        raise refused([mistake(document.place(()), what)])
    try:
        data = document.data if needs_stacks else {"stacks": {}, **document.data}
        return MatrixModel.model_validate(data)
    except ValidationError as error:
        problems = [dict(problem) for problem in error.errors()]
        # Pydantic counts what is right: a list of one wrong value is not empty for its author.
        meant = [
            problem
            for problem in problems
            if not (problem["type"] == "too_short" and problem["input"])
        ]
        raise refused(_explain(document, problem) for problem in meant or problems) from None


def _explain(document: Located, problem: dict[str, Any]) -> Finding:
    """Where, what is wrong, the nearest valid value."""
    path = tuple(part for part in problem["loc"] if part != "[key]")
    if problem["type"] == "missing":
        return mistake(document.place(path[:-1]), f"{dotted(path)} is missing")
    is_key = "[key]" in problem["loc"] or problem["type"] == "extra_forbidden"
    place = document.key_place(path) if is_key else document.place(path)
    return mistake(place, vocabulary.masked(f"{dotted(path)}{_wrong(path, problem)}"))


def _wrong(path: Path_, problem: dict[str, Any]) -> str:
    """What follows the path in a message about the key or value there."""
    kind, wrong = problem["type"], problem.get("input")
    if kind == "extra_forbidden":
        key = str(path[-1])
        hint = did_you_mean(_RENAMED.get(key, key), _known_keys(path[:-1]))
        return f": there is no key {_quoted(path[-1])} here: {hint}"
    if wrong is None:
        return " is empty: give it a value, or remove the line"
    if kind == "literal_error":
        return f": {_quoted(wrong)} is not allowed: {did_you_mean(str(wrong), _literals(problem))}"
    return f": {reason(problem, wrong)}"


def reason(problem: dict[str, Any], wrong: Any) -> str:
    """Pydantic's message in the terms of the file."""
    kind = problem["type"]
    if kind == "string_type" and problem["loc"][-1] in _VERSIONS:
        return f"{_quoted(wrong)} is not text: write the whole version, or put it in quotes"
    context = {"wrong": _short(wrong), **problem.get("ctx", {})}
    if kind == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        latest = " (latest is not allowed: name the version)" if wrong == "latest" else ""
        described = vocabulary.DESCRIBED[context["pattern"]]
        why = _WHY_NOT if context["pattern"] in _URLS and "@" in str(wrong) else ""
        return f"{_quoted(wrong, context['pattern'])} is not {described}{latest}{why}"
    template = _WORDS.get(kind, str(problem["msg"]).lower() + " (it is {wrong})")
    return template.format(**context)


def _quoted(wrong: Any, pattern: str = "") -> str:
    """A value in quotes, without the user and password of a URL, also of one without https://."""
    text = vocabulary.masked(repr(wrong), whole=True)
    if pattern in _URLS and "://" not in text:
        return re.sub(r"^(['\"]).*@", r"\1…@", text)
    return text


def _short(wrong: Any) -> str:
    text = _quoted(wrong)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_SHOWN = 80
_URLS = (vocabulary.PROXY.pattern, vocabulary.URL.pattern)
_WHY_NOT = ": a password would be in Packer's log, and every script of the bake could read it"
_WORDS = {
    "string_type": "{wrong} is not text: put it in quotes if it should be",
    "string_too_long": "is longer than {max_length} characters: {wrong}",
    "int_parsing_size": "is too large for a number: {wrong}",
    "int_type": "must be a whole number, not {wrong}",
    "int_parsing": "must be a whole number, not {wrong}",
    "int_from_float": "must be a whole number, not {wrong}",
    "model_type": "must be a mapping, like {{key: value}}, not {wrong}",
    "dict_type": "must be a mapping, like {{key: value}}, not {wrong}",
    "list_type": "must be a list, like [a, b], not {wrong}",
    "tuple_type": "must be a list, like [a, b], not {wrong}",
    "too_short": "must not be empty",
    "too_long": "has more than {max_length} entries",
    "bool_type": "must be true or false, not {wrong}",
    "bool_parsing": "must be true or false, not {wrong}",
    "greater_than_equal": "must be at least {ge}, not {wrong}",
    "less_than_equal": "must be at most {le}, not {wrong}",
    "multiple_of": "must be a multiple of {multiple_of}, not {wrong}",
}


# Old names of keys: the message proposes the new one.
_RENAMED = {"source": "parents"}
# Keys that hold versions: a number there needs quotes, or its missing part.
_VERSIONS = {*StackFields.model_fields, "kubernetes", "parallelcluster"}


def _literals(problem: dict[str, Any]) -> list[str]:
    expected = str(problem.get("ctx", {}).get("expected", ""))
    return [word.strip("' ") for word in expected.replace(" or ", ",").split(",")]


def _known_keys(path: tuple[str | int, ...]) -> list[str]:
    """The valid keys of the mapping at `path`."""
    inner: dict[str | int, type[BaseModel]] = {
        "volume": VolumeModel,
        "telemetry": Telemetry,
        "accept": AcceptModel,
        "publish": Publish,
        "share": Share,
        "sign": Sign,
        "aws": Aws,
        "subnet_filter": SubnetChoice,
    }
    outer: dict[str | int, type[BaseModel]] = {
        "defaults": RowSettings,
        "distros": DistroModel,
        "stacks": StackFields,
        "amis": RowModel,
    }
    if not path:
        return list(MatrixModel.model_fields)
    if path[0] == "stacks":  # a stack may have any name
        return list(StackFields.model_fields)
    if "launch_templates" in path:
        return list(LaunchTemplate.model_fields)
    if "parents" in path:
        return list(SourceAmiModel.model_fields)
    named = next((part for part in reversed(path) if isinstance(part, str)), "")
    return list(inner.get(named, outer[path[0]]).model_fields)
