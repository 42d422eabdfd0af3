"""What the linters and the parts of a run of `./invoke test` found, as data for a program."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from devel import junit, second_try, skips


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

    @property
    def first_reports(self) -> list[Path]:
        """The reports that are there, without those of second tries."""
        second = set(map(second_try.report_of, self.reports.glob("*.xml")))
        return [report for report in sorted(self.reports.glob("*.xml")) if report not in second]

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

    def _part(self, name: str) -> dict[str, Any]:
        """How the tests of a part ended. One that passed at its second try has passed."""
        report = self.reports / f"{name}.xml"
        lucky = second_try.lucky(report)
        skipped = skips.read([report])
        tests, failed = set(), {}
        for case in junit.cases(report):
            test = junit.id_of(case) or str(case.get("name"))
            tests.add(test)
            if test not in lucky and (messages := junit.failures(case)):
                failed[test] = messages[0]
        return {
            "part": name,
            "exit_status": self.parts[name],
            "passed": len(tests - failed.keys() - {skip.test for skip in skipped}),
            "failed": len(failed),
            "skipped": len(skipped),
            "failures": [{"test": test, "message": text} for test, text in failed.items()],
            "skips": [{**asdict(skip), "lifted_by": skip.lifted_by} for skip in skipped],
            "second_tries": lucky,
        }
