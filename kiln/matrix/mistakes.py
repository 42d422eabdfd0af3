"""Mistakes in `amis.yaml`: one finding each, and the error that lists them."""

from __future__ import annotations

from collections.abc import Iterable

from kiln.base.errors import KilnError
from kiln.base.findings import Finding, Place


def mistake(place: Place, message: str) -> Finding:
    """A mistake in the matrix: where, and in one line what is wrong and what would be right."""
    return Finding("error", "matrix", message).at(place)


def refused(mistakes: Iterable[Finding]) -> KilnError:
    """The error (exit status 2) for at least one mistake: a line for each, and each as a finding.

    They are in the file's order. Rows that share a stack or a distribution share its mistakes:
    those are listed once.
    """
    findings = sorted(
        dict.fromkeys(mistakes),
        key=lambda mistake: (mistake.file or "", mistake.line, mistake.column),
    )
    lines = [f"{finding.place}: {finding.message}" for finding in findings]
    return KilnError("\n".join(lines), place=findings[0].place, findings=findings)
