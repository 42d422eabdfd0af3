"""A few tests that failed beside others run once more, one at a time, and are named at the end.

In a whole run five processes share two cores for a quarter of an hour. A test that a neighbour's
load made fail passes then; one that is broken fails again. Either way it is named, so that
nobody takes a test that fails now and then for a sound one. What fails when a test is over (a
traceback in the lab's log, something left behind) is the whole run's, and is not tried again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

# More than that is not one test's bad luck: nothing is tried again.
MOST_FILES = 3


def report_of(report: Path) -> Path:
    """The JUnit report of the second try."""
    return report.with_suffix(".again.xml")


def tests(report: Path) -> list[str]:
    """The ids of the tests of that run to try again: of few files, and none failed at its end."""
    if not report.exists():  # pytest ended before writing it
        return []
    ids = set()
    for case in _cases(report):
        failures = [part for part in case if part.tag in ("failure", "error")]
        if any(part.get("message", "").startswith("failed on teardown") for part in failures):
            return []
        if failures:
            ids.add(_id(case))
    files = {name.partition("::")[0] for name in ids}
    return sorted(ids) if len(files) <= MOST_FILES and "" not in files else []


def _id(case: ElementTree.Element) -> str:
    """A test's id by its file, class and name; "" if it is not a test, such as a file that cannot
    be imported."""
    file = case.get("file", "")
    module = file.removesuffix(".py").replace("/", ".")
    groups = case.get("classname", "").removeprefix(module).strip(".").split(".")
    return "::".join(filter(None, [file, *groups, case.get("name", "")])) if file else ""


def passed(report: Path, tried: int) -> bool:
    """Whether the second try ran all `tried` tests and each passed; a skipped one did not."""
    again = report_of(report)
    if not again.exists():
        return False
    cases = _cases(again)
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
    lines = ["FAILED at first, and passed at a second try (the load, or a race?):"]
    return "\n".join([*lines, *(f"  {name}" for name in names)])


def _cases(report: Path) -> list[ElementTree.Element]:
    """The tests of a JUnit report."""
    return list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - pytest wrote it
