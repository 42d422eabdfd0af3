"""What an update of `amis.lock.yaml` changes, and how much of it a pinned key signs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kiln.base.overlay import shown_path
from kiln.base.paths import lock_file
from kiln.facts.lock_file import KEY, SIGNATURE


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
        return "\n".join(lines) or f"{shown_path(lock_file())} is up to date"


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


def signed_line(lock: Mapping[str, Any]) -> str:
    """How much of a lock is signed by a pinned key."""
    signed = sum("signed by" in text for text in _flat(lock).values())
    return (
        f"{signed} packages and files are signed by a pinned key: a bake that finds another stops"
    )


def _flat(lock: Mapping[str, Any]) -> dict[str, str]:
    flat = {}
    for entry in lock["artifacts"]:
        flat[entry["url"]] = _described(entry)
    for repository in lock["packages"]:
        for package in repository["packages"]:
            name, _, version = package.partition("=")
            where = f"{repository['repository']}  {name} {version}".rstrip()
            flat[where] = f"signed by {repository['signed_by']}"
    return flat


def _described(entry: Mapping[str, Any]) -> str:
    if entry.keys() >= KEY:
        return f"key {entry['fingerprint']}"
    if entry.keys() >= SIGNATURE:
        return f"signs {entry['signs']}, signed by {entry['signed_by']}"
    return f"{entry['version']}  sha256 {entry['sha256'] or 'not known yet'}"
