"""The build record: what a run made, from what, and how it was found to be."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.paths import build_dir
from kiln.cloud.runs import Run

SCHEMA = 1

Record = dict[str, Any]


def write(run: Run, record: Mapping[str, Any]) -> None:
    """Write a run's record. It appears whole or not at all."""
    fresh = run.record.with_suffix(".new")
    fresh.write_text(json.dumps({"schema": SCHEMA, **record}, indent=2) + "\n", encoding="utf-8")
    fresh.rename(run.record)


def last(recipe: str) -> Record | None:
    """The record of a recipe's newest run that has one; None when it was never built here."""
    return next(iter(all_of(recipe)), None)


def find(name: str) -> Record:
    """The record of a build: by its file, AMI id, run id or AMI name (then the newest image).

    Raises KilnError (exit code 2) when there is none here.
    """
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        return _read(path)
    rows = sorted(path.name for path in build_dir().glob("*") if path.is_dir())
    for recipe in rows:
        for found in all_of(recipe):
            known = {found.get("run_id"), found.get("ami_id"), *found.get("amis", {}).values()}
            # The name alone means its newest build that got as far as an image.
            if name in known or (name == recipe and found.get("versions")):
                return found
    raise KilnError(
        f"{name}: no record of such a build in {build_dir()}",
        hint=did_you_mean(name, rows) if rows else "./invoke build makes one",
    )


def _read(path: Path) -> Record:
    try:
        data: Record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise KilnError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise KilnError(f"{path}: not a JSON record: {error}") from None
    if not isinstance(data, dict):
        raise KilnError(f"{path}: not a JSON record: it is no mapping")
    if not isinstance(data.get("amis", {}), dict):
        raise KilnError(f"{path}: no record of a run: its `amis` is no mapping")
    return data


def all_of(recipe: str) -> list[Record]:
    """The records of a recipe's runs, newest first."""
    found = []
    for path in sorted((build_dir() / recipe).glob("*/record.json"), reverse=True):
        with contextlib.suppress(OSError, KilnError):
            found.append(_read(path))
    return found
