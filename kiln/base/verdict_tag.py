"""The value of the tag `kiln:verified`: the verdict of the AMI checks, when, by which commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TaggedVerdict:
    """A verdict as an AMI's tag has it; `at` is a time in UTC (2026-08-01T12:00:00Z)."""

    passed: bool
    at: str
    commit: str

    @property
    def status(self) -> Literal["verified", "failed"]:
        """The status of a record whose checks gave this verdict."""
        return "verified" if self.passed else "failed"

    def __str__(self) -> str:
        return f"{'pass' if self.passed else 'fail'} {self.at} {self.commit}"


def read_verdict(value: str | None) -> TaggedVerdict | None:
    """The verdict in a tag's value; None for a value that is none, or without a tag."""
    word, *rest = (value or "").split(" ", 2)
    if word not in ("pass", "fail") or len(rest) != 2:
        return None
    return TaggedVerdict(word == "pass", *rest)


def says_verified(value: str | None) -> bool:
    """Whether a tag's value says that the checks passed."""
    verdict = read_verdict(value)
    return verdict is not None and verdict.passed
