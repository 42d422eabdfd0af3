"""The AMI checks as one self-contained HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kiln.base.templates import render
from kiln.cloud.capacity import Try
from kiln.pipeline.checks import Check
from kiln.pipeline.record import Record


def write_report(path: Path, record: Record, before: Record | None = None) -> None:
    """Write the report of a run's record; `before` is the build to compare it with."""
    # Half a surrogate pair, which JSON of an image may hold, is not a character of UTF-8.
    path.write_text(report_html(record, before), encoding="utf-8", errors="backslashreplace")


def report_html(record: Record, before: Record | None = None) -> str:
    """The page. Everything in it comes from the records and is escaped."""
    components = _by_component(record.checks.checks if record.checks else ())
    failed = [
        check
        for component in components
        for check in component["checks"]
        if check["outcome"] == "failed"
    ]
    return render(
        "report.html.j2",
        record=record,
        components=components,
        failed=failed,
        skipped=_by_reason(record.checks.checks if record.checks else ()),
        kernel=((record.versions or {}).get("kernel") or {}).get("boots"),
        longest=max(record.component_seconds.values(), default=0) or 1,
        before=before,
        changed=_changed(before, record) if before else [],
        launches="; ".join(map(_launch_text, record.tries)),
    )


def _launch_text(launch: Try) -> str:
    """A launch that EC2 was asked for, in words."""
    where = f" in {launch.subnet_id}" if launch.subnet_id else ""
    what = f"{launch.stage}: {launch.instance_type}{where}, {launch.market}"
    return f"{what}: {launch.answer}" if launch.answer else what


# Lists of version-info, and how many names of each are shown; `./invoke diff` shows all.
_THINGS = {
    "packages": "packages by name",
    "files": "files",
    "units": "units",
    "sysctls": "kernel parameters",
    "boot": "boot parameters",
}
_NAMED = 8
_COMPARED = ("driver", "kernel_module", "cuda", "cudnn", "nccl", "efa", "dcgm", "container_toolkit")


def _changed(before: Record, record: Record) -> list[tuple[str, str, str]]:
    """(what, before, now) of the stack, the kernel, the packages' number and the checks."""
    recipes = (before.recipe, record.recipe)
    rows = [(name, *(getattr(recipe, name) for recipe in recipes)) for name in _COMPARED]
    for name, read in (
        ("boot kernel", lambda r: ((r.versions or {}).get("kernel") or {}).get("boots")),
        ("parent AMI", lambda r: r.source_ami and r.source_ami.ami_id),
        ("packages", lambda r: len((r.versions or {}).get("packages") or ())),
        ("checks passed", lambda r: r.checks and r.checks.passed),
        ("checks failed", lambda r: r.checks and r.checks.failed),
    ):
        rows.append((name, read(before), read(record)))
    old, new = (round(each.seconds.get("packer build", 0)) for each in (before, record))
    rows.append(("seconds of the bake", old, new))
    changed = [(name, _word(old), _word(new)) for name, old, new in rows if old != new]
    return changed + list(_other_things(before.versions or {}, record.versions or {}))


def _other_things(before: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(kind, "", names) of the things on the image that are new, gone or otherwise."""
    for kind, title in _THINGS.items():
        if kind not in before or kind not in now:
            continue  # an older bake did not list them
        old, new = _by_name(before[kind]), _by_name(now[kind])
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            yield title, "", f"{len(names)} differ: {', '.join(names[:_NAMED])}{more}"


def _by_name(things: Any) -> dict[str, Any]:
    """What version-info lists, by name: there may be several packages of one name."""
    if isinstance(things, dict):
        return things
    by_name: dict[str, Any] = {}
    for entry in things:
        by_name.setdefault(str(entry["name"]), []).append(entry)
    return by_name


def _word(value: object) -> str:
    return "none" if value is None else str(value)


def _by_reason(checks: Sequence[Check]) -> dict[str, list[str]]:
    """Why checks were skipped → file::name of each, as in the source."""
    reasons: dict[str, list[str]] = {}
    for check in checks:
        if check.outcome == "skipped":
            reasons.setdefault(check.message, []).append(f"{check.file}.py::{check.name}")
    return reasons


def _by_component(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """The checks of each component, with their counts, in the order in which they ran."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for check in checks:
        name = check.file.removeprefix("test_").replace("_", "-")
        by_name.setdefault(name, []).append({**asdict(check), "component": name})
    return [
        {
            "name": name,
            "checks": entries,
            "reason": _common_reason(entries),
            **Counter(check["outcome"] for check in entries),
        }
        for name, entries in by_name.items()
    ]


def _common_reason(checks: list[dict[str, Any]]) -> str:
    """Why all checks were skipped; empty if not all were, or if the reasons differ."""
    reasons = {(check["outcome"], check["message"]) for check in checks}
    (first, *more) = reasons
    return str(first[1]) if not more and first[0] == "skipped" else ""
