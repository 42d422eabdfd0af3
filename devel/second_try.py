"""A few tests that failed beside others run once more, one at a time, and are named at the end.

In a whole run five processes share two cores for a quarter of an hour. A test that a neighbour's
load made fail passes then; one that is broken fails again. Either way it is named, so that
nobody takes a test that fails now and then for a sound one. What fails when a test is over (a
traceback in the lab's log, something left behind) is the whole run's, and is not tried again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from devel.junit import cases, failures, id_of
from kiln.facts.program_messages import message

# More than that is not one test's bad luck: nothing is tried again.
MOST_FILES = 3


def report_of(report: Path) -> Path:
    """The JUnit report of the second try."""
    return report.with_suffix(".again.xml")


def tests(report: Path) -> list[str]:
    """The ids of the tests of that run to try again: of few files, and none failed at its end."""
    ids = set()
    after_the_test = message("pytest", "after_the_test")
    for case in cases(report):
        texts = failures(case)
        if any(after_the_test.search(text) for text in texts):
            return []
        if texts:
            ids.add(id_of(case))
    files = {name.partition("::")[0] for name in ids}
    return sorted(ids) if len(files) <= MOST_FILES and "" not in files else []


def passed(report: Path, tried: int) -> bool:
    """Whether the second try ran all `tried` tests and each passed; a skipped one did not."""
    again = cases(report_of(report))
    ends = {"failure", "error", "skipped"}
    return len(again) >= tried and not any(part.tag in ends for case in again for part in case)


def lucky(report: Path) -> list[str]:
    """The ids of the tests of that run that failed, and passed at the second try."""
    ids = tests(report)
    return ids if ids and passed(report, len(ids)) else []


def as_text(reports: Iterable[Path]) -> str:
    """A list for people of what was tried a second time and passed; empty if nothing was."""
    names = [name for report in reports for name in lucky(report)]
    if not names:
        return ""
    lines = ["FAILED at first, and passed at a second try (the load, or a race?):"]
    return "\n".join([*lines, *(f"  {name}" for name in names)])
