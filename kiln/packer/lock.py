"""`amis.lock.yaml`: the exact files that a bake downloads, derived from recipes and components.

An artefact is a URL with its version and SHA-256. The hash comes from the facts, or from a build
on AWS that downloaded the file (`./invoke lock --from`), and is enforced from then on. A key file
is identified by its fingerprint instead (a vendor may renew its signature), a detached signature by
the file it signs and its key, packages by repository, signing key and version. Where the row's
repositories are recorded (`./invoke preflight --record`), the version is the one that they have,
with its revision.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from kiln import components, facts
from kiln.base import paths, vocabulary
from kiln.base.errors import KilnError, operation_failed
from kiln.base.recipe import Recipe
from kiln.compat.published import judged_packages, unpublished_packages
from kiln.components import Download, Step
from kiln.facts import lock_file, table
from kiln.facts.indexes import Published
from kiln.facts.lock_file import BYTES, KEY, SEEN_BY, SIGNATURE

_HEAD = """\
# Exactly which bytes a bake downloads. Made from amis.yaml and kiln/facts/knowledge/downloads.yaml
# by `./invoke lock --update`; do not edit.
# sha256: null = not known yet: `./invoke lock --from RUN` takes it from the record of a build on
# AWS, and from then on a bake whose download differs stops. A key is known by its
# fingerprint, a signature by the file it `signs` and the key it is `signed_by`; the bake checks it.
# `packages` of a repository were seen in its index, signed by that key (`./invoke preflight
# --record`); `unseen` were not: a bake refuses them if another key signs them.
"""


@dataclass(frozen=True)
class LockDiff:
    """What an update of the lock file would change: entries by name; `changed` has old and new."""

    added: dict[str, str]
    removed: dict[str, str]
    changed: dict[str, tuple[str, str]]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def as_json(self) -> dict[str, Any]:
        """The diff as plain data."""
        return {"added": self.added, "removed": self.removed, "changed": self.changed}

    def as_text(self) -> str:
        """The diff for a person: + and - for added and removed entries, ~ for changed ones."""
        lines = [f"+ {name}  {what}" for name, what in sorted(self.added.items())]
        lines += [f"- {name}  {what}" for name, what in sorted(self.removed.items())]
        for name, (old, new) in sorted(self.changed.items()):
            lines += [f"~ {name}", f"    - {old}", f"    + {new}"]
        return "\n".join(lines) or "amis.lock.yaml is up to date"


def load_lock(path: Path | None = None) -> dict[str, Any]:
    """The lock file's data; an empty lock if there is no file.

    Raises KilnError (exit status 2) if it is not a lock file.
    """
    return lock_file.read_lock_file(path)


def wanted(recipes: Iterable[Recipe], current: Mapping[str, Any]) -> dict[str, Any]:
    """The lock that these recipes need, with every sha256 from `current` and the facts.

    Raises KilnError (exit status 2) if a URL contains "latest", and for a package that is recorded
    as not published.
    """
    known = {entry["url"]: entry for entry in current["artifacts"]}
    artifacts: dict[str, dict[str, Any]] = {}
    repositories: dict[str, dict[str, Any]] = {}
    for recipe in recipes:
        filled = [components.get(name).for_recipe(recipe) for name in recipe.components]
        for step in filled:
            for entry in _artifacts(step, recipe, known):
                artifacts.setdefault(entry["url"], entry)
        chosen = _chosen(recipe)
        for url, signed_by, packages in _packages(filled, recipe):
            repository = repositories.setdefault(
                url, {"repository": url, "signed_by": signed_by, "packages": set(), "unseen": set()}
            )
            for package in packages:
                kind = "packages" if package in chosen else "unseen"
                repository[kind].add(chosen.get(package, package))
    return {
        "artifacts": sorted(artifacts.values(), key=lambda entry: entry["url"]),
        "packages": [
            {**entry, **{kind: sorted(entry[kind]) for kind in ("packages", "unseen")}}
            for _, entry in sorted(repositories.items())
        ],
    }


def plan_lock(recipes: Iterable[Recipe], current: Mapping[str, Any]) -> LockDiff:
    """What `update` would change in `current`."""
    return compare_locks(current, wanted(recipes, current))


def compare_locks(old: Mapping[str, Any], new: Mapping[str, Any]) -> LockDiff:
    """The difference of two locks, by URL and by package in a repository."""
    before, after = _flat(old), _flat(new)
    return LockDiff(
        added={name: after[name] for name in after.keys() - before.keys()},
        removed={name: before[name] for name in before.keys() - after.keys()},
        changed={
            name: (before[name], after[name])
            for name in before.keys() & after.keys()
            if before[name] != after[name]
        },
    )


def update_lock(recipes: Iterable[Recipe], path: Path | None = None) -> LockDiff:
    """Bring the lock file in line with the recipes; known hashes stay."""
    path = path or paths.lock_file()
    current = load_lock(path)
    new = wanted(recipes, current)
    changes = compare_locks(current, new)
    if new != current or not path.is_file():
        save_lock(new, path)  # also if only a source has changed
    return changes


def save_lock(data: Mapping[str, Any], path: Path | None = None) -> None:
    """Write a lock file."""
    path = path or paths.lock_file()
    text = yaml.safe_dump(dict(data), sort_keys=False, width=200, allow_unicode=True)
    path.write_text(_HEAD + text, encoding="utf-8")


def first_seen(downloads: Iterable[Mapping[str, Any]], path: Path | None = None) -> list[str]:
    """The URLs among these downloads (of a version-info) whose hash is not confirmed yet."""
    unknown = {
        entry["url"]
        for entry in load_lock(path)["artifacts"]
        if entry.keys() >= BYTES and (not entry["sha256"] or entry.get("confirmed") is False)
    }
    return sorted(unknown & {str(entry.get("url")) for entry in downloads})


def record_hashes(
    downloads: Iterable[Mapping[str, Any]], *, note: str, when: str, path: Path | None = None
) -> LockDiff:
    """Merge a bake's `downloads` (of its version-info) into the lock file.

    `when` names the build, for the entry's source. `note` is its record's `image_note`: a build
    with one is not of AWS, and what it downloaded may be a stand-in. Raises KilnError: exit
    status 2 for such a build or entries without URL or sha256, 1 if a sha256 differs from the
    locked one.
    """
    if note:
        raise KilnError(
            f"{when} is of {note}: its hashes are not locked",
            hint="the lab serves stand-ins: only a build on AWS downloads the vendors' own files",
        )
    try:
        seen = {entry["url"]: entry["sha256"] for entry in downloads}
        for url, sha256 in seen.items():
            if not isinstance(url, str):
                raise TypeError(url)
            vocabulary.SHA256.required(sha256, f"the sha256 of {url}")
    except (TypeError, KeyError) as error:
        raise KilnError(f"the downloads are malformed: {error!r}") from None
    path = path or paths.lock_file()
    with _alone(path):
        return _merge(seen, when, path)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time reads and writes the lock file."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _merge(seen: Mapping[str, str], when: str, path: Path) -> LockDiff:
    current = load_lock(path)
    entries = []
    for entry in current["artifacts"]:
        got = seen.get(entry["url"])
        if got and entry.get("sha256") and got != entry["sha256"]:
            raise operation_failed(
                f"{entry['url']} does not have the locked sha256: expected {entry['sha256']}, "
                f"the bake got {got}",
                hint="find out why the vendor replaced the file before you remove its entry from "
                "amis.lock.yaml",
            )
        if got and entry.keys() >= BYTES and not entry["sha256"]:
            entry = {**entry, "sha256": got, "source": f"{SEEN_BY}{when}"}  # noqa: PLW2901
        elif got and entry.get("confirmed") is False:  # now the vendor's own server confirms it
            known = {key: value for key, value in entry.items() if key != "confirmed"}
            entry = {**known, "source": f"{SEEN_BY}{when}"}  # noqa: PLW2901
        entries.append(entry)
    new = {**current, "artifacts": entries}
    changes = compare_locks(current, new)
    if new != current:
        save_lock(new, path)
    return changes


def _artifacts(
    step: Step, recipe: Recipe, known: Mapping[str, Mapping[str, Any]]
) -> Iterable[dict[str, Any]]:
    for download in step.downloads:
        if "latest" in download.url:
            raise KilnError(
                f"component {step.name!r} of {recipe.name} downloads {download.url}",
                hint="a download must not be called latest: name the version in the URL",
            )
        fingerprint = _fingerprint(step, download)
        if fingerprint:
            yield {"url": download.url, "fingerprint": fingerprint}
            continue
        signed = _signed(step, download)
        if signed:
            yield {"url": download.url, "signs": signed, "signed_by": _signer(step, download)}
            continue
        before = known.get(download.url, {})
        sha256, source = before.get("sha256"), before.get("source")
        published = facts.known_sha256(download.url)
        if sha256 and published and sha256 != published.sha256:
            raise KilnError(
                f"amis.lock.yaml: {download.url} is locked with sha256 {sha256}, but published "
                f"with {published.sha256} ({published.source})",
                hint="one of them was edited by hand: restore amis.lock.yaml (git checkout), or "
                "remove the entry and run ./invoke lock --update",
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


def _fingerprint(step: Step, download: Download) -> str | None:
    """The key's fingerprint if the download is a key file, otherwise None."""
    if not download.env.endswith("_KEY"):
        return None
    file = PurePosixPath(download.url).name  # NVIDIA names its key files by fingerprint
    prints = _fingerprints(step)
    ending = file.split(".", maxsplit=1)[0].upper()
    named = [fingerprint for fingerprint in prints if fingerprint.endswith(ending)]
    return (named or prints)[0]


def _signed(step: Step, download: Download) -> str | None:
    """The URL of the file that the download signs if it is a detached signature, or None."""
    return next((other.url for other in step.downloads if download.url == f"{other.url}.sig"), None)


def _signer(step: Step, download: Download) -> str:
    """The fingerprint of the only key with which the component checks its signature."""
    prints = _fingerprints(step)
    if len(prints) != 1:
        raise KilnError(
            f"component {step.name!r} downloads the signature {download.url}, but names "
            f"{len(prints)} keys to check it with",
            hint="name the vendor's key, and no other, in the `keys` of "
            f"kiln/components/{step.name.replace('-', '_')}.py",
        )
    return prints[0]


def _fingerprints(step: Step) -> list[str]:
    """The fingerprints of the component's signing keys."""
    known = table("keys")["keys"]
    return [str(known[name]["fingerprint"]) for name in step.keys.values()]


def _packages(filled: list[Step], recipe: Recipe) -> Iterable[tuple[str, str, list[str]]]:
    """(repository, fingerprint of its key, packages) per component that installs packages."""
    own = {step.name: _repository(step) for step in filled}
    vendor = own.get("nvidia-repo")
    others = _libraries(filled, vendor)
    for step in filled:
        packages, libraries = _named(step, "_PACKAGES"), _named(step, "_OS_PACKAGES")
        packages = [package for package in packages if package not in libraries]
        # driver_source applies to the driver and to components that must have its version.
        from_distro = recipe.driver_source == "distro" and step.needs in {
            None,
            "driver",
            "imex",
        }
        where = own[step.name] or (others if step.name in {"cudnn", "nccl"} else vendor)
        if from_distro or where is None:
            packages, libraries = [], [*packages, *libraries]
        if libraries:
            yield f"archive of {recipe.distro.id}", "the distribution's own keys", libraries
        if packages and where:
            yield where[0], where[1], packages


def _chosen(recipe: Recipe) -> dict[str, str]:
    """Each package that is recorded to be published, as a component names it → with the version.

    One that a component takes at any version is locked without it.
    """
    if missing := unpublished_packages(recipe):
        raise KilnError(
            "\n".join(f"{finding.place}: {finding.message}" for finding in missing),
            hint=missing[0].hint,
            place=missing[0].place,
            findings=missing,
        )
    return {
        str(package): f"{package.name}={judged.version}" if package.version else package.name
        for package, judged in judged_packages(recipe).items()
        if judged.state is Published.YES
    }


def _libraries(filled: list[Step], vendor: tuple[str, str] | None) -> tuple[str, str] | None:
    """The repository of cuDNN and NCCL: NVIDIA's for the distribution, unless there is another."""
    urls = [step.env.get("CUDA_LIBRARIES_REPO_URL") for step in filled if vendor]
    return next(((url, vendor[1]) for url in urls if url and vendor), vendor)


def _named(step: Step, ending: str) -> list[str]:
    """The packages in the component's variables whose names end with `ending`."""
    lists = [value for name, value in step.env.items() if name.endswith(ending)]
    return [package for value in lists for package in value.split()]


def _repository(step: Step) -> tuple[str, str] | None:
    """The repository that a component sets up, and its key's fingerprint."""
    url = next((v for name, v in step.env.items() if name.endswith("_REPO_URL")), None)
    if not url:
        return None
    key = next(download for download in step.downloads if download.env.endswith("_KEY"))
    return url, _fingerprint(step, key) or ""


def _flat(lock: Mapping[str, Any]) -> dict[str, str]:
    flat = {}
    hashes = {entry["url"]: entry for entry in lock["artifacts"] if entry.keys() >= BYTES}
    for entry in lock["artifacts"]:
        flat[entry["url"]] = _known(entry, hashes)
    for repository in lock["packages"]:
        for kind, words in (("packages", "signed by"), ("unseen", "will be signed by")):
            for package in repository.get(kind, ()):
                name, _, version = package.partition("=")
                where = f"{repository['repository']}  {name} {version}".rstrip()
                flat[where] = f"{words} {repository['signed_by']}"
    return flat


def signed_line(lock: Mapping[str, Any]) -> str:
    """Of how much of a lock a pinned key's signature was checked, and of how much it will be."""
    words = _flat(lock).values()
    will = sum("will be signed by" in text for text in words)
    proven = sum("signed by" in text for text in words) - will
    return (
        f"{proven} packages and files are signed by a pinned key (signature checked), {will} will "
        "be signed by one: nobody has checked theirs yet, and a bake that finds another key stops"
    )


def _known(entry: Mapping[str, Any], hashes: Mapping[str, Mapping[str, Any]]) -> str:
    if entry.keys() >= KEY:
        return f"key {entry['fingerprint']}"
    if entry.keys() >= SIGNATURE:
        # Only a bake that had the file has checked its signature.
        source = str(hashes.get(entry["signs"], {}).get("source") or "")
        words = "signed by" if source.startswith(SEEN_BY) else "will be signed by"
        return f"signs {entry['signs']}, {words} {entry['signed_by']}"
    return f"{entry['version']}  sha256 {entry['sha256'] or 'not known yet'}"
