"""A few tests that failed beside others run once more by themselves, and are named at the end.

In a whole run five processes share two cores for a quarter of an hour. A test that a neighbour's
load made fail passes by itself; one that is broken fails again. Either way it is named, so that
nobody takes a test that fails now and then for a sound one. What fails when a test is over (a
traceback in the lab's log, something left behind) is the whole run's, and is not tried again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

# More than that is not one test's bad luck: nothing is tried again.
MOST_FILES = 3


def cache_of(report: Path) -> Path:
    """The folder of pytest's cache for the run with this JUnit report."""
    return report.with_suffix(".cache")


def report_of(report: Path) -> Path:
    """The JUnit report of the second try."""
    return report.with_suffix(".again.xml")


def tests(report: Path) -> list[str]:
    """The ids of the tests of that run to try again: of few files, and none failed at its end."""
    failures = cache_of(report) / "v" / "cache" / "lastfailed"
    if not failures.exists() or not report.exists():
        return []
    errors = [error.get("message", "") for error in _cases(report, "testcase/error")]
    if any(message.startswith("failed on teardown") for message in errors):
        return []
    ids = sorted(json.loads(failures.read_text()))
    return ids if len({name.split("::")[0] for name in ids}) <= MOST_FILES else []


def passed(report: Path, tried: int) -> bool:
    """Whether the second try ran all `tried` tests and each passed; a skipped one did not."""
    again = report_of(report)
    if not again.exists():
        return False
    cases = _cases(again, "testcase")
    ends = {"failure", "error", "skipped"}
    return len(cases) >= tried and not any(part.tag in ends for case in cases for part in case)


def as_text(reports: Iterable[Path]) -> str:
    """A list for people of what was tried a second time and passed; empty if nothing was."""
    names = [
        name
        for report in reports
        if (ids := tests(report)) and passed(report, len(ids))
        for name in ids
    ]
    if not names:
        return ""
    lines = ["FAILED beside other tests, and passed by themselves (the load, or a race?):"]
    return "\n".join([*lines, *(f"  {name}" for name in names)])


def _cases(report: Path, path: str) -> list[ElementTree.Element]:
    """The elements of a JUnit report with that path."""
    return ElementTree.parse(report).findall(f".//{path}")  # noqa: S314 - pytest wrote it
