"""Anybody's agent configuration, judged as the agent does it: each file, and all together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln.base import input_file
from kiln.base.errors import KilnError
from kiln.base.findings import Finding, Place
from kiln.base.located import Located
from kiln.base.located_json import locate_json
from kiln.facts import instance
from kiln.telemetry.config_problems import Problem, validate_agent_config
from kiln.telemetry.merge import merged

_SOURCE = (
    "https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/"
    "CloudWatch-Agent-Configuration-File-Details.html"
)

# The agent reads JSON with Go's encoding/json, which takes 10,000 levels: github:golang/go
# src/encoding/json/scanner.go @23bf5c9a9342baaec1471552b760676c2363cec5. Python's stack does not.
_MAX_LEVELS = 300


def check_files(paths: Sequence[Path], instance_type: str | None = None) -> list[Finding]:
    """The findings of files that one agent reads together, each with its file and line.

    Raises KilnError (exit status 2) for a file that cannot be read or is not JSON, and for an
    unknown instance type.
    """
    files = {str(path): _located(path) for path in paths}
    result = [
        _finding(problem, file)
        for file in files.values()
        for problem in validate_agent_config(file.data)
    ]
    whole, clashes = merged({name: file.data for name, file in files.items()})
    result += [
        _finding(clash, file)
        for clash in clashes
        for name, file in files.items()
        if clash.message.startswith(f"{name}: ")
    ]
    if len(files) > 1 and not any(finding.level == "error" for finding in result):
        messages = {(finding.rule, finding.message) for finding in result}
        result += [
            _finding(problem, _origin(problem, whole, files))
            for problem in validate_agent_config(whole)
            if (problem.rule, problem.message) not in messages
        ]
    if instance_type:
        result += _on_instance(whole, instance_type, files)
    return result


def _located(path: Path) -> Located:
    """A JSON file with its places."""
    try:
        text = input_file.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = input_file.why_unreadable(error)
        raise KilnError(f"{path}: cannot be read: {why}", place=Place(str(path))) from None
    try:
        located = locate_json(text, str(path))
    except RecursionError:
        raise _too_deep(path) from None
    except ValueError as error:
        line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
        why = getattr(error, "msg", "a number of too many digits")
        raise KilnError(
            f"{path}:{line}:{column}: not JSON: {why}",
            hint="the agent would not start with this file",
            place=Place(str(path), line, column),
        ) from None
    if not isinstance(located.data, dict):
        raise KilnError(
            f"{path}: an agent configuration is a JSON object with agent, metrics or logs",
            place=Place(str(path), 1, 1),
        )
    if max(map(len, located.values)) > _MAX_LEVELS:
        raise _too_deep(path)
    return located


def _too_deep(path: Path) -> KilnError:
    return KilnError(
        f"{path}: nested more than {_MAX_LEVELS} levels deep, which this check does not follow",
        hint="the agent itself reads 10,000 levels; none of its settings is that deep",
        place=Place(str(path)),
    )


def _finding(problem: Problem, file: Located) -> Finding:
    message = problem.message.removeprefix(f"{file.file}: ")
    finding = Finding(problem.level, problem.rule, message, hint=problem.hint, source=_SOURCE)
    return finding.at(file.key_place(problem.path))


def _origin(problem: Problem, whole: dict[str, Any], files: dict[str, Located]) -> Located:
    """The file that has the wrong value, which has another place in the merged whole."""
    entry = _value(whole, problem.path[:5])
    for file in reversed(files.values()):
        entries = _value(file.data, problem.path[:4])
        if isinstance(entries, list) and entry in entries:
            moved = {problem.path: (*problem.path[:4], entries.index(entry), *problem.path[5:])}
            place = file.key_place(moved[problem.path])
            keys = {**file.keys, problem.path: (place.line or 1, place.column or 1)}
            return Located(file.file, file.data, file.values, keys)
    return next(iter(files.values()))


def _value(data: Any, path: Sequence[str | int]) -> Any:
    """The value at a path; None if there is none."""
    for key in path:
        if isinstance(data, dict):
            data = data.get(key)
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
        else:
            return None
    return data


def _on_instance(
    whole: dict[str, Any], instance_type: str, files: dict[str, Located]
) -> list[Finding]:
    """What the files ask for and that instance type lacks."""
    path = ("metrics", "metrics_collected", "efa")
    collected = _value(whole, path[:-1])
    machine = instance(instance_type)
    if not isinstance(collected, dict) or "efa" not in collected or machine.efa:
        return []
    problem = Problem(
        "warning",
        "cloudwatch-efa",
        f"a {instance_type} has no EFA device: no series of efa arrives",
        "remove the section efa, or use an instance type with EFA",
        path,
    )
    having = next(file for file in files.values() if path in file.keys)
    return [_finding(problem, having)]
