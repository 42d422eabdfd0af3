"""Validates the whole matrix: renders it, checks policy and scripts, runs `packer fmt` and
`validate`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kiln.base.findings import Finding
from kiln.base.recipe import Recipe
from kiln.packer import policy, render
from kiln.packer import program as packer_
from kiln.packer.hclfile import hcl_files
from kiln.packer.program import Packer
from kiln.packer.scripts import check_scripts


@dataclass(frozen=True)
class Validation:
    """The findings about one recipe, and the seconds that `packer validate` took."""

    name: str
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def valid(self) -> bool:
        """Are there no findings?"""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """The validation as plain data."""
        findings = [finding.as_json() for finding in self.findings]
        return {
            "name": self.name,
            "valid": self.valid,
            "seconds": self.seconds,
            "findings": findings,
        }


def validate_recipes(recipes: Sequence[Recipe], packer: Packer) -> list[Validation]:
    """Check every recipe's folder in `packer/`, which is brought up to date first.

    Packer's processes run in parallel, and the policy is checked meanwhile.
    Raises KilnError if a recipe cannot be rendered or a plugin cannot be installed.
    """
    if not recipes:
        return []
    folders = render.write_folders(recipes)
    packer_.install_plugins(packer, next(iter(folders.values())))
    # One more than cores: Packer spends part of its time waiting for the processes it starts.
    with ThreadPoolExecutor(max_workers=(os.cpu_count() or 1) + 1) as workers:
        answers = {name: workers.submit(_timed, packer, folder) for name, folder in folders.items()}
        files = sorted({path for folder in folders.values() for path in hcl_files(folder)})
        unformatted = workers.submit(packer_.badly_formatted, packer, files)
        policies = {name: policy.check_policy(folder) for name, folder in folders.items()}
        unparsed = {recipe.name: check_scripts(recipe.components) for recipe in recipes}
        return [
            Validation(
                name,
                (
                    *(replace(finding, rows=(name,)) for finding in policies[name]),
                    *(replace(finding, rows=(name,)) for finding in unparsed[name]),
                    *_invalid(name, folder, answers[name].result()[0]),
                    *_unformatted(name, folder, unformatted.result()),
                ),
                round(answers[name].result()[1], 3),
            )
            for name, folder in folders.items()
        ]


def _timed(packer: Packer, folder: Path) -> tuple[str, float]:
    started = time.monotonic()
    return packer_.packer_validate(packer, folder), time.monotonic() - started


def _invalid(name: str, folder: Path, complaint: str) -> list[Finding]:
    if not complaint:
        return []
    file = f"packer/{folder.name}"
    return [Finding("error", "packer-validate", complaint, rows=(name,), file=file, line=1)]


def _unformatted(name: str, folder: Path, files: Sequence[Path]) -> list[Finding]:
    mine = hcl_files(folder)
    return [
        Finding(
            "error",
            "packer-fmt",
            "is not formatted as by `packer fmt`",
            "correct the template in templates/packer/",
            (name,),
            f"packer/{path.relative_to(folder.resolve().parent).as_posix()}",
            1,
        )
        for path in files
        if path in mine
    ]
