"""The hashes that a bake on AWS saw, for `amis.lock.yaml` (`./invoke lock --from`).

From then on a bake whose download differs stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kiln.base import overlay, paths, vocabulary
from kiln.base.errors import KilnError, operation_failed
from kiln.facts.lock_file import BYTES, SEEN_BY
from kiln.packer.lock import alone, load_lock, save_lock
from kiln.packer.lock_diff import LockDiff, compare_locks


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
    with alone(path):
        return _merge(seen, when, path)


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
                f"{overlay.shown_path(path)}",
            )
        if got and entry.keys() >= BYTES and not entry["sha256"]:
            entry = {**entry, "sha256": got, "source": f"{SEEN_BY}{when}"}  # noqa: PLW2901
        elif got and entry.get("confirmed") is False:  # now the vendor's own server confirms it
            rest = {key: value for key, value in entry.items() if key != "confirmed"}
            entry = {**rest, "source": f"{SEEN_BY}{when}"}  # noqa: PLW2901
        entries.append(entry)
    new = {**current, "artifacts": entries}
    changes = compare_locks(current, new)
    if new != current:
        save_lock(new, path)
    return changes
