"""The warnings that a row accepts, each with a reason and a last day (`accept` in amis.yaml)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from kiln.base.errors import did_you_mean
from kiln.base.findings import Finding
from kiln.base.recipe import Accepted, Recipe

EXPIRED = "ACCEPT-EXPIRED"
UNUSED = "ACCEPT-UNUSED"


def with_accepted(
    recipe: Recipe, plain: Sequence[Finding], findings: Sequence[Finding], day: date
) -> list[Finding]:
    """The findings with those that the row accepts at level `accepted`.

    `plain` are the same findings as they are without `--strict`: what is an error there cannot be
    accepted. An acceptance past its last day is an error, one without its warning a warning.
    """
    entries = {entry.rule: entry for entry in recipe.row.accepted}
    judged = [
        _judged(finding, entries.get(finding.rule), easy.level == "error", day)
        for easy, finding in zip(plain, findings, strict=True)
    ]
    warned = {finding.rule for finding in plain if finding.level != "error"}
    for entry in recipe.row.accepted:
        if day > entry.until:
            judged.append(
                Finding(
                    "error",
                    EXPIRED,
                    f"{entry.rule} was accepted until {entry.until} only: {entry.reason}",
                    hint="resolve it, or accept it anew with a later day",
                ).at(entry.place)
            )
        elif entry.rule not in warned:
            judged.append(
                Finding(
                    "warning",
                    UNUSED,
                    f"the row accepts {entry.rule}, and `check` has no such warning about it",
                    hint=f"remove the entry; {did_you_mean(entry.rule, warned)}"
                    if warned
                    else "remove the entry",
                ).at(entry.place)
            )
    return judged


def _judged(finding: Finding, entry: Accepted | None, hard: bool, day: date) -> Finding:
    if entry is None or hard or day > entry.until:
        return finding
    return replace(finding, level="accepted", hint=f"accepted until {entry.until}: {entry.reason}")
