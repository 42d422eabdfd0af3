"""Validates the whole matrix: renders it, checks policy and scripts, runs `packer fmt`
and `validate`.

A Packer with plugins starts the amazon plugin several times for each validation: 1.8 s of CPU, of
which judging the HCL is 0.1 s. So of the rows that give the builder the same values one is
validated. The others have the same files, linked, but for their recipe: `packer console` reads
their folder and computes every local, as `validate` does before it asks the plugin.
"""

from __future__ import annotations

import json
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

from kiln.base.findings import Finding
from kiln.base.recipe import Recipe
from kiln.packer import plugins, policy
from kiln.packer.folders import write_folders
from kiln.packer.hcl_values import HclError, parse_hcl, references
from kiln.packer.hclfile import blocks_in, hcl_files
from kiln.packer.program import EXAMPLE_VARIABLES, Packer, ask_packer, command
from kiln.packer.scripts import check_scripts
from kiln.packer.staleness import shown_packer

# A folder's own file; the others are links.
_OWN = "recipe.pkr.hcl"


@dataclass(frozen=True)
class Validation:
    """The findings about one recipe, and the seconds that Packer took.

    `like` is the recipe whose validation showed what this one gives the builder; None if it was
    validated itself.
    """

    name: str
    findings: tuple[Finding, ...]
    seconds: float
    like: str | None = None

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
            "like": self.like,
            "findings": findings,
        }


def validate_recipes(
    recipes: Sequence[Recipe], packer: Packer, *, each: bool = False
) -> list[Validation]:
    """Check every recipe's folder as the matrix renders it now, in a temporary folder: what is
    committed stays as it is.

    With `each`, `packer validate` runs in every folder. Packer's processes run in parallel, and the
    policy is checked meanwhile.
    Raises KilnError if a recipe cannot be rendered or a plugin cannot be installed.
    """
    if not recipes:
        return []
    with tempfile.TemporaryDirectory(prefix="kiln-validate-") as temporary:
        folders = write_folders(recipes, Path(temporary, "packer"))
        return _validations(recipes, folders, packer, each=each)


def _validations(
    recipes: Sequence[Recipe], folders: Mapping[str, Path], packer: Packer, *, each: bool
) -> list[Validation]:
    plugins.install_plugins(packer, next(iter(folders.values())))
    like = {} if each or not packer.has_plugins else _alike(folders)
    # One more than cores: Packer spends part of its time waiting for the processes it starts.
    with ThreadPoolExecutor(max_workers=(os.cpu_count() or 1) + 1) as workers:
        answers = {
            name: workers.submit(_timed, packer, folder, values_only=False)
            for name, folder in folders.items()
            if name not in like
        }
        files = sorted({path for folder in folders.values() for path in hcl_files(folder)})
        unformatted = workers.submit(badly_formatted, packer, files)
        policies = {name: policy.check_policy(folder) for name, folder in folders.items()}
        unparsed = {recipe.name: check_scripts(recipe.components) for recipe in recipes}
        # By now their files, which have the names of the locals, are parsed: the policy reads them.
        for name in like:
            answers[name] = workers.submit(_timed, packer, folders[name], values_only=True)
        # What is wrong with one may be wrong with those that were not asked because of it.
        for name, other in list(like.items()):
            if answers[other].result()[0]:
                answers[name] = workers.submit(_timed, packer, folders[name], values_only=False)
                del like[name]
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
                like.get(name),
            )
            for name, folder in folders.items()
        ]


def _alike(folders: Mapping[str, Path]) -> dict[str, str]:
    """The recipes that give the builder what another one gives it, each with that other one.

    What it gets of a recipe stands as `local.recipe.…` in source.pkr.hcl; everything else in the
    files that all folders link to is from variables. The provisioners' blocks are the same too: of
    a recipe they get locals, and a component decides only whether its provisioner runs.
    """
    first: dict[str, str] = {}
    like = {}
    for name, folder in folders.items():
        recipe = json.loads((folder / "files/etc/kiln/recipe.json").read_text())
        files = {path.name: path.read_text() for path in folder.glob("*.pkr.hcl")}
        shared = {name: text for name, text in files.items() if name != _OWN}
        try:
            named = references(shared["source.pkr.hcl"])
        except HclError:
            return {}  # Packer says what is wrong with it
        used = sorted(path[2:] for path in named if path[:2] == ("local", "recipe"))
        key = json.dumps([[_at(recipe, path) for path in used], sorted(shared.items())])
        if first.setdefault(key, name) != name:
            like[name] = first[key]
    return like


def _at(recipe: Any, path: Sequence[str]) -> Any:
    """What a recipe has at a path; None for nothing, of which Packer says where it is read."""
    value = recipe
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _timed(packer: Packer, folder: Path, *, values_only: bool) -> tuple[str, float]:
    started = time.monotonic()
    # `validate` reports what is wrong, and its messages name the line.
    names = _locals(folder) if values_only else []
    complaint = packer_values(packer, folder, names) if names else "?"
    if complaint:
        mistake = packer_validate(packer, folder)
        complaint = mistake or ("" if not values_only else complaint)
    return complaint, time.monotonic() - started


def _locals(folder: Path) -> list[str]:
    """The names of all locals in a folder's HCL; none if a file is not HCL."""
    try:
        files = [parse_hcl(path.read_text()) for path in folder.glob("*.pkr.hcl")]
    except HclError:
        return []
    return sorted({name for data in files for block in blocks_in(data, "locals") for name in block})


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


def packer_values(packer: Packer, folder: Path, names: Sequence[str]) -> str:
    """The complaint of `packer console` about these locals of a folder; empty if all have values.

    It reads the whole folder and starts no plugin, which is nearly all of what a validation costs.
    """
    expression = f"jsonencode([{', '.join(f'local.{name}' for name in names)}])\n"
    done = ask_packer(
        command(packer, "console", variables=EXAMPLE_VARIABLES), folder, text=expression
    )
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def badly_formatted(packer: Packer, files: Sequence[Path]) -> list[Path]:
    """The HCL files that `packer fmt` would change."""
    # packer fmt takes one file or one folder without subfolders, so copy all files into one.
    with tempfile.TemporaryDirectory(prefix="kiln-fmt-") as copies:
        for number, file in enumerate(files):
            shutil.copyfile(file, Path(copies, f"{number}.pkr.hcl"))
        done = ask_packer([str(packer.path), "fmt", "-check", "."], Path(copies))
        numbers = re.findall(r"(\d+)\.pkr\.hcl$", done.stdout, re.MULTILINE)
    return [files[int(number)] for number in sorted(set(numbers), key=int)]
