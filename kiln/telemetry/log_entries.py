"""The rules of the agent's translator for log files and for Windows events: one retention and class
per log group, patterns, filters, encodings, time formats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from kiln.base.errors import did_you_mean
from kiln.facts import table
from kiln.telemetry.facts import telemetry_facts
from kiln.telemetry.go_pattern import go_pattern_problem

Path = tuple[str | int, ...]
# The fields of a Problem: level, rule, message, hint, path.
Found = tuple[Literal["error", "warning"], str, str, str, Path]
# What the agent puts for a placeholder of a log group's name, as far as its form is known.
_PLACEHOLDERS = {
    "{instance_id}": "i-[0-9a-f]{8,17}",
    "{hostname}": r"[\w.-]+",
    "{local_hostname}": r"[\w.-]+",
    "{ip_address}": r"[0-9a-f.:]+",
    "{aws_region}": r"[a-z]{2}(-[a-z]+)+-\d",
    "{account_id}": r"\d{12}",
    "{date}": r"\d{4}-\d\d-\d\d",
}


def log_problems(config: dict[str, Any]) -> Iterator[Found]:
    """What is wrong with each entry of a collect_list, and what two of them contradict."""
    collected = config.get("logs", {}).get("logs_collected", {})
    for source, content in collected.items():
        if isinstance(content, dict):
            path = ("logs", "logs_collected", source, "collect_list")
            entries = content.get("collect_list", [])
            for number, entry in enumerate(entries):
                yield from _entry(entry, (*path, number))
            if source != "journald":
                yield from _log_groups(entries, path)


def _entry(entry: dict[str, Any], path: Path) -> Iterator[Found]:
    logs = telemetry_facts()["logs"]
    log_class = entry.get("log_group_class")
    if log_class is not None and log_class.upper() not in logs["classes"]:
        yield (
            "error",
            "cloudwatch-log-class",
            f"{entry.get('log_group_name', '')}: the agent drops the unknown log_group_class "
            f"{log_class!r}",
            did_you_mean(log_class, logs["classes"]),
            (*path, "log_group_class"),
        )
    for code in re.findall(r"%-?.", entry.get("timestamp_format", "")):
        if code not in logs["timestamp_codes"]:
            yield (
                "error",
                "cloudwatch-timestamp",
                f"{entry['file_path']}: the agent does not translate {code} in "
                f"{entry['timestamp_format']!r}",
                f"known: {' '.join(logs['timestamp_codes'])}",
                (*path, "timestamp_format"),
            )
    encoding = entry.get("encoding", "")
    if encoding and encoding.strip().lower() not in table("cloudwatch-encodings")["names"]:
        yield (
            "error",
            "cloudwatch-encoding",
            f"the agent knows no encoding {encoding!r} and would not start",
            did_you_mean(encoding.lower(), table("cloudwatch-encodings")["names"]),
            (*path, "encoding"),
        )
    yield from _patterns(entry, path)


def _patterns(entry: dict[str, Any], path: Path) -> Iterator[Found]:
    patterns: list[tuple[Path, str]] = [
        ((key,), entry[key])
        for key in ("multi_line_start_pattern", "blacklist")
        if entry.get(key) and entry[key] != "{timestamp_format}"
    ]
    for number, item in enumerate(entry.get("filters", [])):
        here: Path = ("filters", number)
        missing = [key for key in ("type", "expression") if not item.get(key)]
        if missing:
            yield (
                "error",
                "cloudwatch-filter",
                f"a filter has no {' and no '.join(missing)}: the agent would not start",
                'write {"type": "include", "expression": "…"}, or "exclude"',
                (*path, *here),
            )
        else:
            patterns.append(((*here, "expression"), item["expression"]))
    for inner, text in patterns:
        if reason := go_pattern_problem(text):
            yield (
                "error",
                "cloudwatch-pattern",
                f"{text!r} is not a regular expression of Go: {reason}",
                "",
                (*path, *inner),
            )


def _log_groups(entries: list[dict[str, Any]], path: Path) -> Iterator[Found]:
    """One retention and one class per log group; the agent compares names without their case, after
    it has put values for the placeholders. Entries without a group have one of their own."""
    first: list[tuple[str, str, Any]] = []
    classes = telemetry_facts()["logs"]["classes"]
    for number, entry in enumerate(entries):
        group = entry.get("log_group_name", "")
        retention = entry.get("retention_in_days")
        log_class = str(entry.get("log_group_class", "")).upper()
        values = {
            "retention_in_days": retention if retention and retention > 0 else None,
            "log_group_class": log_class if log_class in classes else None,
        }
        for key, value in values.items():
            if not group or value is None:
                continue
            for other, other_key, other_value in first:
                if other_key == key and other_value != value and _may_be_one(other, group):
                    also = "" if other.lower() == group.lower() else f", which is also {other},"
                    yield (
                        "error",
                        f"cloudwatch-one-{key.replace('_', '-')}",
                        f"log group {group}{also} has two values of {key}: {other_value} and "
                        f"{value}",
                        f"use one value in both places, such as {other_value}",
                        (*path, number, key),
                    )
                    break
            first.append((group, key, value))


def _may_be_one(first: str, second: str) -> bool:
    """Can two names of log groups be one on an instance?"""
    return (
        first.lower() == second.lower()
        or _matches(_without_case(first), second)
        or _matches(_without_case(second), first)
    )


def _without_case(name: str) -> str:
    return "".join(
        _PLACEHOLDERS.get(part, re.escape(part)) for part in re.split(r"(\{\w+\})", name)
    )


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(pattern, name, re.IGNORECASE) is not None
