"""What a check says about a recipe or about rendered HCL: the seam between steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One clash: which rule, what clashes and why, and the nearest thing that works."""

    level: Level
    rule: str
    message: str
    hint: str = ""
    row: str | None = None
    file: str | None = None
    line: int | None = None
    source: str = ""

    def as_json(self) -> dict[str, Any]:
        """The finding as plain data, in the order of its fields."""
        return asdict(self)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.file and self.line else ""
        row = f" [{self.row}]" if self.row else ""
        hint = f"\n    {self.hint}" if self.hint else ""
        return f"{place}{self.level}: {self.rule}{row}: {self.message}{hint}"


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those that must stop a build."""
    return [finding for finding in findings if finding.level == "error"]
