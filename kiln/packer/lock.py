"""`amis.lock.yaml`: the exact files that a bake downloads, derived from recipes and components.

An artefact is a URL with its version and SHA-256. The hash comes from the facts, or from a build
on AWS that downloaded the file (`./invoke lock --from`), and is enforced from then on. A key file
is identified by its fingerprint instead (a vendor may renew its signature), a detached signature by
the file it signs and its key, packages by repository, signing key and version.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from kiln import components, facts
from kiln.base import overlay, paths
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.components import Step
from kiln.facts import lock_file
from kiln.facts.lock_file import SEEN_BY
from kiln.packer.lock_diff import LockDiff, compare_locks
from kiln.packer.signers import file_of_signature, file_signer, key_fingerprint, repository_packages

_HEAD = """\
# Exactly which bytes a bake downloads. Made from amis.yaml and kiln/facts/knowledge/downloads.yaml
# by `./invoke lock --update`; do not edit.
# sha256: null = not known yet: `./invoke lock --from RUN` takes it from the record of a build on
# AWS, and from then on a bake whose download differs stops. A key is known by its
# fingerprint, a signature by the file it `signs` and the key it is `signed_by`; the bake checks it.
# A bake stops if another key signs the `packages` of a repository.
"""


def load_lock(path: Path | None = None) -> dict[str, Any]:
    """The lock file's data; an empty lock if there is no file.

    Raises KilnError (exit status 2) if it is not a lock file.
    """
    return lock_file.read_lock_file(path)


def wanted(recipes: Iterable[Recipe], current: Mapping[str, Any]) -> dict[str, Any]:
    """The lock that these recipes need, with every sha256 from `current` and the facts.

    Raises KilnError (exit status 2) if a URL contains "latest".
    """
    entries = {entry["url"]: entry for entry in current["artifacts"]}
    artifacts: dict[str, dict[str, Any]] = {}
    repositories: dict[str, dict[str, Any]] = {}
    for recipe in recipes:
        filled = [components.get(name).for_recipe(recipe) for name in recipe.components]
        for step in filled:
            for entry in _artifacts(step, recipe, entries):
                artifacts.setdefault(entry["url"], entry)
        for url, signed_by, packages in repository_packages(filled, recipe):
            repository = repositories.setdefault(
                url, {"repository": url, "signed_by": signed_by, "packages": set()}
            )
            repository["packages"].update(packages)
    return {
        "artifacts": sorted(artifacts.values(), key=lambda entry: entry["url"]),
        "packages": [
            {**entry, "packages": sorted(entry["packages"])}
            for _, entry in sorted(repositories.items())
        ],
    }


def plan_lock(recipes: Iterable[Recipe], current: Mapping[str, Any]) -> LockDiff:
    """What `update` would change in `current`."""
    return compare_locks(current, wanted(recipes, current))


def update_lock(recipes: Iterable[Recipe], path: Path | None = None) -> LockDiff:
    """Bring the lock file in line with the recipes; known hashes stay."""
    path = path or paths.lock_file()
    with alone(path):
        current = load_lock(path)
        new = wanted(recipes, current)
        changes = compare_locks(current, new)
        if new != current or not path.is_file():
            save_lock(new, path)  # also if only a source has changed
    return changes


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time reads and writes the lock file."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def save_lock(data: Mapping[str, Any], path: Path | None = None) -> None:
    """Write a lock file atomically; the caller holds it `alone`."""
    path = (path or paths.lock_file()).resolve()
    text = yaml.safe_dump(dict(data), sort_keys=False, width=200, allow_unicode=True)
    fresh = path.with_name(f".{path.name}.new")  # always the same: a killed process leaves one
    fresh.write_text(_HEAD + text, encoding="utf-8")
    fresh.replace(path)


def _artifacts(
    step: Step, recipe: Recipe, entries: Mapping[str, Mapping[str, Any]]
) -> Iterable[dict[str, Any]]:
    for download in step.downloads:
        if "latest" in download.url:
            raise KilnError(
                f"component {step.name!r} of {recipe.name} downloads {download.url}",
                hint="a download must not be called latest: name the version in the URL",
            )
        fingerprint = key_fingerprint(step, download)
        if fingerprint:
            yield {"url": download.url, "fingerprint": fingerprint}
            continue
        signed = file_of_signature(step, download)
        if signed:
            yield {"url": download.url, "signs": signed, "signed_by": file_signer(step, download)}
            continue
        before = entries.get(download.url, {})
        sha256, source = before.get("sha256"), before.get("source")
        published = facts.known_sha256(download.url)
        if sha256 and published and sha256 != published.sha256:
            raise KilnError(
                f"{overlay.shown_path(paths.lock_file())}: {download.url} is locked with sha256 "
                f"{sha256}, but published with {published.sha256} ({published.source})",
                hint=f"one of them was edited by hand: {lock_file.restore()}, or remove the entry "
                "and run ./invoke lock --update",
            )
        unconfirmed = before.get("confirmed") is False
        if published and not str(source or "").startswith(SEEN_BY):
            # Refresh published hashes each time, since their source may have improved.
            sha256, source = published.sha256, published.source
            unconfirmed = not published.confirmed
        yield {
            "url": download.url,
            "version": download.version or getattr(recipe, step.needs or "driver"),
            "sha256": sha256,
            "source": source,
            **({"confirmed": False} if unconfirmed else {}),
        }
