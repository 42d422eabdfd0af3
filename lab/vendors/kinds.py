"""Kinds of vendors that answer a guest's requests: the lab's stand-ins, or the vendors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kiln.base.errors import KilnError, did_you_mean, operation_failed
from kiln.base.recipe import Recipe
from kiln.components.component import operating_system
from kiln.components.package_repositories import Repository

if TYPE_CHECKING:
    from kiln.preflight.indexes import Fetcher

STAND_INS = "stand-ins"
REAL = "real"
KINDS = (STAND_INS, REAL)
# Tells the lab's process which of them to use.
VARIABLE = "KILN_LAB_VENDORS"


def wanted() -> str:
    """The word in the environment. Raises KilnError (exit status 2) for an unknown one."""
    word = os.environ.get(VARIABLE, STAND_INS)
    if word not in KINDS:
        raise KilnError(f"{VARIABLE} {word!r} is not known", hint=did_you_mean(word, KINDS))
    return word


def refuse_impossible(recipes: Sequence[Recipe]) -> None:
    """Raise KilnError (exit status 2) for a row that the lab has no real parent for: one whose
    parent exists as an AMI of AWS only, and one that needs snapd."""
    for recipe in recipes:
        if recipe.flavor != "base":
            raise KilnError(
                f"{recipe.name}: --vendors real has no parent for flavor {recipe.flavor}: AWS "
                "publishes it as an AMI only, so nothing of it can be installed here",
                hint="build a base row, build in AWS (--target aws), or leave out --vendors real",
            )
        if operating_system(recipe) == "ubuntu" and "ssm-agent" in recipe.components:
            raise KilnError(
                f"{recipe.name}: --vendors real has no SSM agent for Ubuntu: it is a snap, and a "
                "guest of the lab cannot run snapd",
                hint="add `without: [ssm-agent]` to the row in a copy of amis.yaml (KILN_MATRIX), "
                "or leave out --vendors real",
            )


def refuse_silent(recipes: Sequence[Recipe]) -> None:
    """Ask every host that bakes of the recipes fetch from, one file each.

    Raises operation_failed that names those that do not answer.
    """
    # Only this needs them, and they are slow to import.
    from kiln.preflight.ask import cache_folder, demand
    from kiln.preflight.indexes import Fetcher

    fetcher = Fetcher(cache_folder() / "files")
    urls: dict[str, str] = {}
    for needs in map(demand, recipes):
        for url in (*(file.url for file in needs.files), *_indexes(needs.repositories)):
            urls.setdefault(urlsplit(url).netloc, url)
    silent = sorted(filter(None, (_silence(fetcher, url) for url in urls.values())))
    if silent:
        listed = ", ".join(silent)
        raise operation_failed(
            f"--vendors real: no answer from {listed}",
            hint="build on a machine that reaches them (./invoke preflight says what each has), or "
            "leave out --vendors real: the lab has stand-ins",
        )


def _silence(fetcher: Fetcher, url: str) -> str:
    """Return the host that did not answer, and why; "" for one that did."""
    from kiln.preflight.indexes import NoAnswerError, NotThereError

    with contextlib.suppress(NotThereError):  # it answers; what is missing fails the bake
        try:
            fetcher.size(url)
        except NoAnswerError as error:
            return f"{error.host} ({error.reason})"
    return ""


def _indexes(repositories: Sequence[Repository]) -> Iterator[str]:
    for repository in repositories:
        if repository.kind == "apt":
            yield repository.release_files()[0]
        elif repository.mirror_list:
            yield repository.url
        else:
            yield f"{repository.url}/repodata/repomd.xml"
