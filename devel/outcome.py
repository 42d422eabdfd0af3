"""Results of the linters and of pytest's runs, as data for a program."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree


@dataclass(frozen=True)
class Finished:
    """The result of a linter."""

    name: str
    ok: bool
    seconds: float
    output: str


def linters_as_json(linters: list[Finished]) -> dict[str, Any]:
    """What the linters found, as `./invoke lint --json` prints it."""
    return {
        "exit_status": int(not all(check.ok for check in linters)),
        "linters": [asdict(check) for check in linters],
    }


@dataclass
class Outcome:
    """What a run has found so far. pytest's report of a part is `PART.xml` in `reports`."""

    reports: Path
    linters: list[Finished] = field(default_factory=list)
    # Part → its exit status.
    parts: dict[str, int] = field(default_factory=dict)
    # What had to run and could not → why.
    not_run: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The whole outcome, as `./invoke test --json` prints it."""
        answer = linters_as_json(self.linters)
        status = answer["exit_status"] | int(bool(self.not_run))
        for part in self.parts.values():
            status |= part
        return {
            **answer,
            "exit_status": status,
            "parts": [self._part(name) for name in self.parts],
            "not_run": [{"part": name, "reason": reason} for name, reason in self.not_run.items()],
        }

    def skips(self) -> str:
        """List the skipped tests by reason; empty when nothing was skipped."""
        groups: dict[str, list[str]] = {}
        for report in sorted(self.reports.glob("*.xml")):
            for test, reason in _skipped(_cases(report)).items():
                groups.setdefault(reason, []).append(test)
        if not groups:
            return ""
        count = sum(map(len, groups.values()))
        lines = [f"{count} {'test was' if count == 1 else 'tests were'} skipped:"]
        for reason, tests in groups.items():
            lines += [f"  {reason}", *(f"    {test}" for test in tests)]
        return "\n".join(lines)

    def _part(self, name: str) -> dict[str, Any]:
        """How the tests of a part ended."""
        cases = _cases(self.reports / f"{name}.xml")
        skipped = _skipped(cases)
        # A test whose end failed has two elements.
        failed: dict[str, str] = {}
        for case in cases:
            for part in case:
                if part.tag in ("failure", "error"):
                    failed.setdefault(_test_id(case), part.get("message", ""))
        return {
            "part": name,
            "exit_status": self.parts[name],
            "passed": len({_test_id(case) for case in cases} - failed.keys() - skipped.keys()),
            "failed": len(failed),
            "skipped": len(skipped),
            "failures": [{"test": test, "message": text} for test, text in failed.items()],
            "skips": [{"test": test, "reason": reason} for test, reason in skipped.items()],
        }


def _cases(report: Path) -> list[ElementTree.Element]:
    """The tests of a JUnit report; [] if pytest ended before writing it."""
    if not report.exists():
        return []
    return list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - pytest wrote it


def _skipped(cases: list[ElementTree.Element]) -> dict[str, str]:
    """Skipped tests → the reason."""
    found = ((_test_id(case), case.find("skipped")) for case in cases)
    return {test: skip.get("message", "") for test, skip in found if skip is not None}


def _test_id(case: ElementTree.Element) -> str:
    """A test's id for pytest; only its name where a file could not be imported."""
    file, name = case.get("file", ""), case.get("name", "")
    module = file.removesuffix(".py").replace("/", ".")
    groups = case.get("classname", "").removeprefix(module).strip(".").split(".")
    return "::".join(filter(None, [file, *groups, name])) if file else name
