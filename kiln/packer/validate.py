"""Validate the whole matrix: render it, check policy and scripts, run `packer fmt` and
`packer validate`."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lark.exceptions import LarkError

from kiln.base.findings import Finding
from kiln.base.recipe import Recipe
from kiln.packer import plugins, policy
from kiln.packer.folders import write_folders
from kiln.packer.program import EXAMPLE_VARIABLES, FOLDER_1_6, Packer, ask_packer, command
from kiln.packer.scripts import check_scripts
from kiln.packer.staleness import shown_packer


@dataclass(frozen=True)
class Validation:
    """The findings about one recipe, and the seconds that Packer took."""

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
    """Check every recipe's folder as the matrix renders it now, in a temporary folder: what is
    committed stays as it is.

    Packer's processes run in parallel, and the policy is checked meanwhile.
    Raises KilnError if a recipe cannot be rendered or a plugin cannot be installed.
    """
    if not recipes:
        return []
    with tempfile.TemporaryDirectory(prefix="kiln-validate-") as temporary:
        folders = write_folders(recipes, Path(temporary, "packer"))
        return _validations(recipes, folders, packer)


def _validations(
    recipes: Sequence[Recipe], folders: Mapping[str, Path], packer: Packer
) -> list[Validation]:
    plugins.install_plugins(packer, next(iter(folders.values())))
    # One more than cores: Packer spends part of its time waiting for the processes it starts.
    with ThreadPoolExecutor(max_workers=(os.cpu_count() or 1) + 1) as workers:
        answers = {name: workers.submit(_timed, packer, folder) for name, folder in folders.items()}
        files = sorted({path for folder in folders.values() for path in hcl_files(folder)})
        unformatted = workers.submit(badly_formatted, packer, files)
        policies = {name: _policy(folder) for name, folder in folders.items()}
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


def _policy(folder: Path) -> list[Finding]:
    try:
        return policy.check_policy(folder)
    except (LarkError, KeyError) as error:
        message = f"the policy cannot read the HCL: {error}"
        return [Finding("error", "hcl-syntax", message, file=f"{shown_packer()}/{folder.name}")]


def _timed(packer: Packer, folder: Path) -> tuple[str, float]:
    started = time.monotonic()
    return packer_validate(packer, folder), time.monotonic() - started


def _invalid(name: str, folder: Path, complaint: str) -> list[Finding]:
    if not complaint:
        return []
    file = f"{shown_packer()}/{folder.name}"
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
            f"{shown_packer()}/{path.relative_to(folder.resolve().parent).as_posix()}",
            1,
        )
        for path in files
        if path in mine
    ]


def packer_validate(packer: Packer, folder: Path) -> str:
    """The complaint of `packer validate` about the HCL in `folder`; empty if it is valid."""
    done = ask_packer(command(packer, "validate", variables=EXAMPLE_VARIABLES), folder)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def hcl_files(folder: Path) -> list[Path]:
    """The HCL files of an AMI's folder and those it links to, each once."""
    paths = [*folder.glob("*.pkr.hcl"), *folder.glob(f"{FOLDER_1_6}/*.pkr.hcl")]
    return sorted({path.resolve() for path in paths})


def badly_formatted(packer: Packer, files: Sequence[Path]) -> list[Path]:
    """The HCL files that `packer fmt` would change."""
    # packer fmt takes one file or one folder without subfolders, so copy all files into one.
    with tempfile.TemporaryDirectory(prefix="kiln-fmt-") as copies:
        for number, file in enumerate(files):
            shutil.copyfile(file, Path(copies, f"{number}.pkr.hcl"))
        done = ask_packer([str(packer.path), "fmt", "-check", "."], Path(copies))
        numbers = re.findall(r"(\d+)\.pkr\.hcl$", done.stdout, re.MULTILINE)
    return [files[int(number)] for number in sorted(set(numbers), key=int)]
