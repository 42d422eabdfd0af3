"""The release that a channel holds, beside the one that it held before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kiln.base.errors import KilnError
from kiln.base.paths import build_dir
from kiln.cloud.target import Target
from kiln.image.diff import compare_records
from kiln.image.version_info import raw_version_info
from kiln.pipeline import record
from kiln.publish import channels
from kiln.publish.gates import grave
from kiln.publish.release import Release

# Named in a table; the JSON report has all.
_NAMED = 5


@dataclass(frozen=True)
class Comparison:
    """What differs from the release before, whose AMI in the same region is `before`.

    `grave` needs `--accept` at a promotion. `counts` are the changes by severity and `changes` the
    changes as `./invoke diff --json` has them, most severe first; both are empty where `unknown`
    says why the images could not be compared.
    """

    before: str
    grave: tuple[str, ...]
    counts: Mapping[str, int]
    changes: tuple[Mapping[str, Any], ...]
    unknown: str = ""

    def __str__(self) -> str:
        if self.unknown:
            return f"to {self.before}: {self.unknown}"
        if not self.changes:
            return f"nothing changed since {self.before}"
        counts = ", ".join(f"{number} {name}" for name, number in self.counts.items() if number)
        named = ", ".join(_shown(change) for change in self.changes[:_NAMED])
        more = len(self.changes) - _NAMED
        rest = f", and {more} more" if more > 0 else ""
        number = len(self.changes)
        changes = "change" if number == 1 else "changes"
        return f"{number} {changes} since {self.before} ({counts}): {named}{rest}"


def _shown(change: Mapping[str, Any]) -> str:
    name = f"{change['kind']} {change['name']}"
    if change["old"] is None:
        return f"{name} added"
    return (
        f"{name} removed" if change["new"] is None else f"{name} {change['old']} → {change['new']}"
    )


Bring = Callable[[Mapping[str, str]], None]


def compared(target: Target, line: str, channel: str, bring: Bring) -> Comparison | None:
    """The channel's release beside the one before; None if it is the first.

    `bring` gets the runs whose record is not here (row → run id). Raises KilnError (exit status 1)
    if SSM refuses.
    """
    releases: list[Release] = []
    for release in channels.past(target, line, channel):
        if not releases or releases[-1].ami_name != release.ami_name:
            releases.append(release)
        if len(releases) == 2:
            break
    if len(releases) < 2:
        return None
    new, old = releases
    differences = tuple(grave(old, new))
    before = old.images.get(target.region, old.ami_name)
    try:
        changes = compare_records(_info(old, bring), _info(new, bring))
    except KilnError as error:
        return Comparison(before, differences, {}, (), error.message)
    counts = Counter(change.severity for change in changes)
    return Comparison(
        before,
        differences,
        {severity: counts[severity] for severity in ("high", "medium", "low")},
        tuple(change.as_json() for change in changes),
    )


def _info(release: Release, bring: Bring) -> dict[str, Any]:
    """The version-info of a release. Raises KilnError if its run's record is not to be had."""
    path = build_dir() / release.recipe / release.run_id / "record.json"
    if not path.exists():
        bring({release.recipe: release.run_id})
    if not path.exists():
        raise KilnError(f"no record of run {release.run_id} here, so not compared")
    return raw_version_info(record.document(path), str(path))
