"""Reads the JUnit reports that pytest writes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree


def cases(report: Path) -> list[ElementTree.Element]:
    """The tests of a report; [] if pytest ended before writing it."""
    if not report.exists():
        return []
    return list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - pytest wrote it


def id_of(case: ElementTree.Element) -> str:
    """A test's id by its file, class and name; "" if it is not a test, such as a file that cannot
    be imported."""
    file = case.get("file", "")
    module = file.removesuffix(".py").replace("/", ".")
    groups = case.get("classname", "").removeprefix(module).strip(".").split(".")
    return "::".join(filter(None, [file, *groups, case.get("name", "")])) if file else ""


def failures(case: ElementTree.Element) -> list[str]:
    """The messages of a test that failed, or whose preparation or end did."""
    return [part.get("message", "") for part in case if part.tag in ("failure", "error")]
