"""`amis.lock.yaml`: the exact files that a bake downloads, derived from recipes and components.

An artefact is a URL with its version and SHA-256. The hash comes from the facts, or from a build
on AWS that downloaded the file (`./invoke lock --from`), and is enforced from then on. A key file
is identified by its fingerprint instead (a vendor may renew its signature), a detached signature by
the file it signs and its key, packages by repository, signing key and version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from kiln import facts
from kiln.base import overlay, paths, vocabulary
from kiln.base.errors import KilnError, operation_failed
from kiln.base.recipe import Recipe
from kiln.components import Download, Step, steps
from kiln.facts import table
from kiln.facts.packages import BYTES, KEY, RESTORE, SEEN_BY, SIGNATURE, read_lock_file

_HEAD = """\
# Exactly which bytes a bake downloads. Made from amis.yaml and kiln/facts/knowledge/downloads.yaml
# by `./invoke lock --update`; do not edit.
# sha256: null = not known yet: `./invoke lock --from RUN` takes it from the record of a build on
# AWS, and from then on a bake whose download differs stops. A key is known by its
# fingerprint, a signature by the file it `signs` and the key it is `signed_by`; the bake checks it.
# A bake stops if another key signs the `packages` of a repository.
"""
Lock = Mapping[str, Any]


@dataclass(frozen=True)
class LockDiff:
    """Changes that an update would make to the lock file: entries by name; a changed one is in
    both."""

    removed: dict[str, str]
    added: dict[str, str]

    def __bool__(self) -> bool:
        return bool(self.removed or self.added)

    def as_text(self) -> str:
        """The diff for a person: - for removed and + for added entries, sorted by name."""
        entries = [(name, f"- {name}  {what}") for name, what in self.removed.items()]
        entries += [(name, f"+ {name}  {what}") for name, what in self.added.items()]
        lines = [line for _, line in sorted(entries, key=lambda entry: entry[0])]
        return "\n".join(lines) or f"{overlay.shown_path(paths.lock_file())} is up to date"


def compare_locks(old: Lock, new: Lock) -> LockDiff:
    """Return the difference of two locks, by URL and by package in a repository."""
    before, after = _flat(old), _flat(new)
    return LockDiff(
        removed={name: what for name, what in before.items() if after.get(name) != what},
        added={name: what for name, what in after.items() if before.get(name) != what},
    )


def plan_lock(recipes: Iterable[Recipe], current: Lock) -> LockDiff:
    """Return what `update_lock` would change in `current`."""
    return compare_locks(current, wanted(recipes, current))


def update_lock(recipes: Iterable[Recipe]) -> LockDiff:
    """Bring the lock file in line with the recipes; known hashes stay."""
    current = read_lock_file()
    return _save(current, wanted(recipes, current))


def wanted(recipes: Iterable[Recipe], current: Lock) -> dict[str, Any]:
    """Return the lock that these recipes need, with every sha256 from `current` and the facts."""
    entries = {entry["url"]: entry for entry in current["artifacts"]}
    artifacts: dict[str, dict[str, Any]] = {}
    repositories: dict[str, dict[str, Any]] = {}
    for recipe in recipes:
        baked = steps(recipe)
        for step in baked:
            for download in step.downloads:
                artifacts[download.url] = artifacts.get(download.url) or {
                    "url": download.url,
                    **_identity(step, download, recipe, entries.get(download.url, {})),
                }
        for url, signed_by, packages in _repository_packages(baked, recipe):
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


def first_seen(downloads: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the URLs among a version-info's downloads whose hash is not confirmed yet."""
    entries = read_lock_file()["artifacts"]
    unknown = {entry["url"] for entry in entries if _is_unconfirmed(entry)}
    return sorted(unknown & {str(entry.get("url")) for entry in downloads})


def record_hashes(downloads: Iterable[Mapping[str, Any]], *, note: str, when: str) -> LockDiff:
    """Merge a bake's `downloads` (of its version-info) into the lock file.

    `when` names the build, for the entry's source. `note` is its record's `image_note`: a build
    with one is not of AWS, and what it downloaded may be a stand-in.
    """
    if note:
        raise KilnError(
            f"{when} is of {note}: its hashes are not locked",
            hint="only a build on AWS downloads the vendors' own files",
        )
    seen = {str(entry["url"]): entry["sha256"] for entry in downloads}
    for url, sha256 in seen.items():
        vocabulary.SHA256.required(sha256, f"the sha256 of {url}")
    current, artifacts = read_lock_file(), []
    for entry in current["artifacts"]:
        got, locked = seen.get(entry["url"]), entry.get("sha256")
        if got and locked and locked != got:
            raise operation_failed(
                f"{entry['url']} does not have the locked sha256: expected {locked}, the bake got "
                f"{got}",
                hint="find out why the vendor replaced the file before you remove its entry from "
                f"{overlay.shown_path(paths.lock_file())}",
            )
        if got and _is_unconfirmed(entry):
            known = {key: value for key, value in entry.items() if key != "confirmed"}
            artifacts.append({**known, "sha256": got, "source": f"{SEEN_BY}{when}"})
        else:
            artifacts.append(entry)
    return _save(current, {**current, "artifacts": artifacts})


def _is_unconfirmed(entry: Mapping[str, Any]) -> bool:
    """Return True for a file whose hash no vendor and no bake has confirmed."""
    return entry.keys() >= BYTES and (not entry["sha256"] or entry.get("confirmed") is False)


def _save(current: Lock, new: Lock) -> LockDiff:
    """Write the lock file atomically if it changes."""
    path = paths.lock_file()
    if new != current or not path.is_file():  # also if only a source has changed
        text = yaml.safe_dump(dict(new), sort_keys=False, width=200, allow_unicode=True)
        fresh = path.with_name(f".{path.name}.new")  # always the same: a killed process leaves one
        fresh.write_text(_HEAD + text, encoding="utf-8")
        fresh.replace(path)
    return compare_locks(current, new)


def _flat(lock: Lock) -> dict[str, str]:
    """Map each entry's name to what identifies it."""
    flat = {}
    for entry in lock["artifacts"]:
        if entry.keys() >= KEY:
            what = f"key {entry['fingerprint']}"
        elif entry.keys() >= SIGNATURE:
            what = f"signs {entry['signs']}, signed by {entry['signed_by']}"
        else:
            what = f"{entry['version']}  sha256 {entry['sha256'] or 'not known yet'}"
        flat[entry["url"]] = what
    for repository in lock["packages"]:
        for package in repository["packages"]:
            name, _, version = package.partition("=")
            where = f"{repository['repository']}  {name} {version}".rstrip()
            flat[where] = f"signed by {repository['signed_by']}"
    return flat


def _identity(
    step: Step, download: Download, recipe: Recipe, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what identifies a download; `before` is its entry in the current lock."""
    if "latest" in download.url:
        raise KilnError(
            f"component {step.name!r} of {recipe.name} downloads {download.url}",
            hint="a download must not be called latest: name the version in the URL",
        )
    if download.env.endswith("_KEY"):
        return {"fingerprint": _key_fingerprint(step, download)}
    signed = [other.url for other in step.downloads if download.url == f"{other.url}.sig"]
    if signed:
        keys = _fingerprints(step)
        if len(keys) != 1:
            raise KilnError(
                f"component {step.name!r} downloads the signature {download.url}, but names "
                f"{len(keys)} keys to check it with",
                hint="name the vendor's key, and no other, in the component's `keys`",
            )
        return {"signs": signed[0], "signed_by": keys[0]}
    known = {"sha256": before.get("sha256"), "source": before.get("source")}
    if before.get("confirmed") is False:
        known["confirmed"] = False
    published = facts.known_sha256(download.url)
    if published and known["sha256"] not in (None, published.sha256):
        raise KilnError(
            f"{overlay.shown_path(paths.lock_file())}: {download.url} is locked with sha256 "
            f"{known['sha256']}, but published with {published.sha256} ({published.source})",
            hint=f"one of them was edited by hand: {RESTORE}, or remove the entry "
            "and run ./invoke lock --update",
        )
    if published and not str(known["source"] or "").startswith(SEEN_BY):
        # Refresh published hashes each time, since their source may have improved.
        known = {"sha256": published.sha256, "source": published.source}
        known |= {} if published.confirmed else {"confirmed": False}
    version = download.version or getattr(recipe, step.needs or "driver")
    return {"version": version, **known}


def _fingerprints(step: Step) -> list[str]:
    """Return the fingerprints of the component's signing keys."""
    keys = table("keys")["keys"]
    return [str(keys[name]["fingerprint"]) for name in step.keys.values()]


def _key_fingerprint(step: Step, download: Download) -> str:
    """Return the fingerprint of a key file, which NVIDIA names by it."""
    prints = _fingerprints(step)
    ending = PurePosixPath(download.url).name.split(".", maxsplit=1)[0].upper()
    named = [fingerprint for fingerprint in prints if fingerprint.endswith(ending)]
    return (named or prints)[0]


def _repository_packages(steps: list[Step], recipe: Recipe) -> Iterable[tuple[str, str, list[str]]]:
    """Yield (repository, fingerprint of its key, packages) per component that installs packages."""
    own = {step.name: _repository(step) for step in steps}
    vendor = own.get("nvidia-repo")
    # cuDNN and NCCL come from NVIDIA's repository for the distribution, unless there is another.
    urls = [step.env.get("CUDA_LIBRARIES_REPO_URL") for step in steps if vendor]
    of_libraries = next(((url, vendor[1]) for url in urls if url and vendor), vendor)
    for step in steps:
        packages, from_archive = _named(step, "_PACKAGES"), _named(step, "_OS_PACKAGES")
        packages = [package for package in packages if package not in from_archive]
        # driver_source applies to the driver and to components that must have its version.
        needs_driver = step.needs in {None, "driver", "imex"}
        where = own[step.name] or (of_libraries if step.name in {"cudnn", "nccl"} else vendor)
        if where is None or (recipe.driver_source == "distro" and needs_driver):
            packages, from_archive = [], [*packages, *from_archive]
        if from_archive:
            yield f"archive of {recipe.distro.id}", "the distribution's own keys", from_archive
        if packages and where:
            yield where[0], where[1], packages


def _named(step: Step, ending: str) -> list[str]:
    """Return the packages in the component's variables whose names end with `ending`."""
    lists = [value for name, value in step.env.items() if name.endswith(ending)]
    return [package for value in lists for package in value.split()]


def _repository(step: Step) -> tuple[str, str] | None:
    """Return the repository that a component sets up, and its key's fingerprint."""
    url = next((value for name, value in step.env.items() if name.endswith("_REPO_URL")), None)
    if not url:
        return None
    key = next(download for download in step.downloads if download.env.endswith("_KEY"))
    return url, _key_fingerprint(step, key)
