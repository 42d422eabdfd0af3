"""Two images → what was added, removed and changed between them, the most severe first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kiln.base import versions, vocabulary
from kiln.facts import table
from kiln.image.version_info import (
    InstalledPackage,
    VersionInfo,
    load_version_info,
    read_version_info,
)
from kiln.pipeline.record import Record

Severity = Literal["high", "medium", "low"]
_ORDER = ("high", "medium", "low")
# Kinds that a bake may not have recorded.
_OPTIONAL = {"file": "installed files", "sysctl": "kernel parameters", "boot": "boot parameters"}
# What package tools call the architecture of a package that fits every one.
_ANY_ARCH = ("all", "noarch", "")


@dataclass(frozen=True)
class Change:
    """One difference. `old` is None if it was added, `new` is None if it was removed."""

    severity: Severity
    kind: str
    name: str
    old: str | None
    new: str | None

    @property
    def what(self) -> str:
        """added, removed or changed."""
        if self.old is None:
            return "added"
        return "removed" if self.new is None else "changed"

    def to_dict(self) -> dict[str, Any]:
        """Return the change as plain data."""
        return {**asdict(self), "what": self.what}


def compare_images(a: str, b: str) -> dict[str, Any]:
    """Compare two records by name: see `kiln.pipeline.records.find_record` for valid names.

    Returns `{"a", "b", "changes": [Change as JSON …], "counts": {severity: number},
    "not_compared": [kinds that one of them does not record], "digests": [two recipe digests, null
    if unknown], "asked": {field of the recipe: [old, new]}}`.
    """
    (data_a, build_a), (data_b, build_b) = load_version_info(a), load_version_info(b)
    before, after = read_version_info(data_a, a), read_version_info(data_b, b)
    changes = _changes(before, after)
    recorded = recorded_values(before).keys() & recorded_values(after).keys()
    return {
        "a": a,
        "b": b,
        "changes": [change.to_dict() for change in changes],
        "counts": severity_counts(changes),
        "not_compared": [kind for kind in _OPTIONAL if kind not in recorded],
        "digests": [build.recipe_digest if build else None for build in (build_a, build_b)],
        "asked": _recipe_differences(build_a, build_b),
    }


def compare_records(a: dict[str, Any], b: dict[str, Any]) -> list[Change]:
    """Return the differences between two build records, or the data of two version-info.json."""
    before = read_version_info(a, "the first record")
    return _changes(before, read_version_info(b, "the second record"))


def severity_counts(changes: Iterable[Change]) -> dict[str, int]:
    """Return the number of changes by severity, the most severe first."""
    counts = Counter[str](change.severity for change in changes)
    return {severity: counts[severity] for severity in _ORDER}


def diff_rows(answer: dict[str, Any]) -> list[list[str]]:
    """Return the rows of a table: the changes in the answer of `compare_images`."""
    rows = []
    for change in answer["changes"]:
        values = (change["old"], change["new"])
        both = " → ".join(value or "(empty)" for value in values if value is not None)
        rows.append([*(change[key] for key in ("severity", "what", "kind", "name")), both])
    return rows


def diff_summary(answer: dict[str, Any]) -> list[str]:
    """Return the lines below that table: the counts, and what was not compared."""
    lines = [", ".join(f"{n} {severity}" for severity, n in answer["counts"].items() if n)]
    if not answer["changes"]:
        lines = [f"{answer['a']} and {answer['b']}: {_same(answer)}"]
    if answer["not_compared"]:
        words = " and ".join(_OPTIONAL[kind] for kind in answer["not_compared"])
        lines.append(f"not compared: {words} (one image does not record them)")
    return lines


def _same(answer: dict[str, Any]) -> str:
    """Return what can be said of two images without a recorded difference."""
    old, new = answer["digests"]
    if not (old and new):
        return "no difference on the images; one has no recipe digest"
    if old == new:
        return "no difference; they have one recipe digest"
    changes = [f"{name} {pair[0]} → {pair[1]}" for name, pair in answer["asked"].items()]
    why = "a file that is rendered or uploaded for the bake differs"
    if changes:
        why = f"the recipes differ in {'; '.join(changes)}"
    return f"no difference on the images, but other recipe digests ({old[:12]} → {new[:12]}): {why}"


def _recipe_differences(a: Record | None, b: Record | None) -> dict[str, list[Any]]:
    """Return the fields in which two builds' recipes differ, without their place in the matrix."""
    if not a or not b:
        return {}
    old, new = a.recipe.to_dict(), b.recipe.to_dict()
    names = sorted(old.keys() - {"row"})
    return {name: [old[name], new[name]] for name in names if old[name] != new[name]}


def _changes(a: VersionInfo, b: VersionInfo) -> list[Change]:
    """Return the differences from image a to image b, by severity, then kind and name.

    Severities are in kiln/facts/knowledge/diff.yaml.
    """
    before, after = recorded_values(a), recorded_values(b)
    changes = [
        Change(_severity(kind, name, old, new), kind, name, old, new)
        for kind in before.keys() & after.keys()
        for name in before[kind].keys() | after[kind].keys()
        for old, new in _pairs(before[kind].get(name, []), after[kind].get(name, []))
    ]
    return sorted(changes, key=lambda c: (_ORDER.index(c.severity), c.kind, c.name))


def _pairs(before: Iterable[str], after: Iterable[str]) -> Iterator[tuple[str | None, str | None]]:
    """Yield old and new values of one name; several (two kernels) are compared as sets."""
    removed = sorted((Counter(before) - Counter(after)).elements(), key=versions.key)
    added = sorted((Counter(after) - Counter(before)).elements(), key=versions.key)
    if len(removed) == len(added) == 1:
        yield removed[0], added[0]
        return
    yield from ((value, None) for value in removed)
    yield from ((None, value) for value in added)


def _severity(kind: str, name: str, old: str | None, new: str | None) -> Severity:
    for rule in table("diff")["severities"]:
        if rule["kind"] != kind or not re.fullmatch(rule["name"], name):
            continue
        when = rule.get("when", "any")
        if (
            when == "any"
            or (when == "gone" and new is None)
            or (when == "major" and versions.key(old or "")[:1] != versions.key(new or "")[:1])
        ):
            severity: Severity = rule["severity"]
            return severity
    return "low"


def recorded_values(info: VersionInfo) -> dict[str, dict[str, list[str]]]:
    """Return kind → name → values: what is compared of an image, without what its bake did not
    record."""
    found: dict[str, dict[str, list[str]]] = {}
    for kind, pairs in _recorded(info).items():
        if pairs is not None:
            values = found[kind] = {}
            for name, value in pairs:
                values.setdefault(name, []).append(value)
    return {kind: {name: sorted(v) for name, v in values.items()} for kind, values in found.items()}


def _recorded(info: VersionInfo) -> Mapping[str, Iterable[tuple[str, str]] | None]:
    """Return kind → names and values; None if the bake did not record this kind."""
    # Amazon Linux records a held package as name-version-release.
    held = {f"{p.name}-{p.version}-{p.release}": p.name for p in info.packages}
    files = (info.files or {}).items()
    hashed = [
        (path, re.sub(r"^(sha256:[0-9a-f]{16})[0-9a-f]*", r"\1…", text)) for path, text in files
    ]
    return {
        "os": info.os.model_dump().items(),
        "kernel": info.kernel.model_dump().items(),
        "component": [(name, p.version) for name, p in info.components.items() if p.version],
        "module": [
            (module.name, f"{module.version or '?'} ({module.srcversion}) for {module.kernel}")
            for module in info.modules
        ],
        "package": [(_package_name(p, info.arch), p.full_version) for p in info.packages],
        "unit": [(unit.name, unit.state) for unit in info.units],
        "held": [(held.get(entry, entry), entry) for entry in info.held],
        "path": [
            (name, path)
            for name, paths in info.paths.items()
            for path in ([paths] if isinstance(paths, str) else paths)
        ],
        "file": None if info.files is None else hashed,
        "sysctl": None if info.sysctls is None else info.sysctls.items(),
        "boot": None if info.boot is None else info.boot.items(),
    }


def _package_name(package: InstalledPackage, arch: str) -> str:
    """Return the name, with the architecture of a package for another one than the image's, as
    dpkg does: the name in one image must not depend on what else is on it."""
    own = vocabulary.UNAME_OF_DEB.get(package.arch, package.arch)
    return (
        f"{package.name}:{package.arch}" if arch and own not in (arch, *_ANY_ARCH) else package.name
    )
