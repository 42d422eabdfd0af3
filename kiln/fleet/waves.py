"""Waves: which instances come first, and when the next ones may follow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kiln.base.errors import KilnError

USUAL = "1,10%,100%"


@dataclass(frozen=True)
class WaveSize:
    """How many instances a wave takes: a number, or percent of all, at least one."""

    number: int
    percent: bool

    def of(self, total: int) -> int:
        """The instances of a wave when there are so many in all."""
        return max(1, -(-total * self.number // 100)) if self.percent else self.number


@dataclass
class Wave:
    """A wave and what became of its instances. `why` says it for those that failed, `kept` for
    those that could not be put back, `seconds` how long its steps took."""

    instances: list[str]
    ok: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def parse_waves(text: str) -> tuple[WaveSize, ...]:
    """`1,10%,100%`: a canary, a tenth of all, the rest.

    Raises KilnError (exit status 2) for other text.
    """
    sizes = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(%?)", part.strip())
        number = int(match[1]) if match else 0
        if not match or number == 0 or (match[2] and number > 100):
            raise KilnError(
                f"--waves {text}: {part.strip() or 'nothing'!r} is not a number of instances or a "
                "percentage",
                hint=f"write numbers and percentages with commas: --waves {USUAL}",
            )
        sizes.append(WaveSize(number, bool(match[2])))
    return tuple(sizes)


def plan_waves(ids: Sequence[str], sizes: Sequence[WaveSize]) -> list[list[str]]:
    """The instances of each wave, in order. What no wave takes is left for a later run."""
    waves = []
    rest = list(ids)
    for size in sizes:
        count = size.of(len(ids))
        if rest:
            waves.append(rest[:count])
        rest = rest[count:]
    return waves


def parse_max_errors(text: str, total: int) -> int:
    """How many may fail before the next wave does not start: `2`, or `5%` of all.

    Raises KilnError (exit status 2) for other text.
    """
    match = re.fullmatch(r"([0-9]{1,6})(%?)", text.strip())
    if not match or (match[2] and int(match[1]) > 100):
        raise KilnError(
            f"--max-errors {text} is not a number of instances or a percentage",
            hint="--max-errors 0 stops at the first instance that fails",
        )
    return total * int(match[1]) // 100 if match[2] else int(match[1])
