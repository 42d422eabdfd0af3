"""The evidence of a walk through an account: a file in evidence/, and its part of the docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from kiln.base.paths import ROOT
from kiln.base.templates import render

FOLDER = ROOT / "evidence"
Outcome = Literal["passed", "failed", "skipped"]
# What must not leave the account: pattern → kind, "" for that of the id. The first comes first: an
# ARN holds an account, and so may an id, by chance.
_PRIVATE = {
    r"\barn:aws[\w-]*:(?:iam|sts)::\d*:[\w+=,.@/-]+": "identity",
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b": "request",
    r"(?<![\w-])([a-z]{1,8})-(?:[0-9a-f]{17}|[0-9a-f]{8})(?![\w-])": "",
    r"(?<![\d.])\d{12}(?![\d.])": "account",
    r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])": "address",
}


class StepResult(BaseModel, frozen=True, extra="forbid"):
    """A step: how it ended, why or with what, its seconds, its price as expected and as it was."""

    id: str
    outcome: Outcome
    detail: str
    seconds: float = 0
    estimated_usd: float | None = None
    usd: float = 0


class Evidence(BaseModel, frozen=True, extra="forbid"):
    """A walk. Ids of the account and its resources are placeholders: ami-1, account-1."""

    version: Literal[1] = 1
    date: str
    region: str
    second_region: str
    git_commit: str
    rows: tuple[str, ...]
    steps: tuple[StepResult, ...]

    @property
    def succeeded(self) -> bool:
        """Return True if no step failed, or was left out because the walk had ended."""
        return not any(s.outcome == "failed" or s.detail.startswith("not run") for s in self.steps)


def without_ids(text: str) -> str:
    """Return a text with a placeholder for each id: the same one wherever the id stands."""
    names: dict[str, str] = {}

    def placeholder(match: re.Match[str]) -> str:
        name = match[1] if match.lastindex else _PRIVATE[match.re.pattern]
        number = sum(each.rpartition("-")[0] == name for each in names.values()) + 1
        return names.setdefault(match[0], f"{name}-{number}")

    for pattern in _PRIVATE:
        text = re.sub(pattern, placeholder, text)
    return text.replace(str(ROOT), ".").replace(str(Path.home()), "~")


def write_evidence(evidence: Evidence) -> Path:
    """Write the file of a walk; one of the same day and region is replaced."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{evidence.date}-{evidence.region}.json"
    path.write_text(f"{without_ids(evidence.model_dump_json(indent=2))}\n", encoding="utf-8")
    return path


def status_text(folder: Path = FOLDER) -> str:
    """Return what docs/test-status.md says about accounts, the newest walk first."""
    files = sorted(folder.glob("*.json"), reverse=True)
    walks = [Evidence.model_validate_json(path.read_bytes()) for path in files]
    return render("evidence.md.j2", walks=walks).strip()
