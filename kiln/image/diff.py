"""Two images → what was added, removed and changed between them, the most severe first."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kiln.base import versions, vocabulary
from kiln.facts import table
from kiln.image.version_info import VersionInfo, load_version_info, read_version_info
from kiln.pipeline.record import Record

Severity = Literal["high", "medium", "low"]
_ORDER = ("high", "medium", "low")


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

    def as_json(self) -> dict[str, Any]:
        """The change as plain data."""
        return {**asdict(self), "what": self.what}


def compare_images(a: str, b: str) -> dict[str, Any]:
    """`diff` of two records by name: see `kiln.pipeline.records.find_record` for valid names.

    Returns `{"a", "b", "changes": [Change as JSON …], "counts": {severity: number},
    "not_compared": [kinds that one of them does not record], "digests": [two recipe digests, null
    if unknown], "asked": {field of the recipe: [old, new]}}`.
    """
    (data_a, build_a), (data_b, build_b) = load_version_info(a), load_version_info(b)
    before, after = read_version_info(data_a, a), read_version_info(data_b, b)
    changes = compare_version_infos(before, after)
    counts = Counter[str](change.severity for change in changes)
    return {
        "a": a,
        "b": b,
        "changes": [change.as_json() for change in changes],
        "counts": {severity: counts[severity] for severity in _ORDER},
        "not_compared": [
            kind for kind, read in _READERS.items() if None in (read(before), read(after))
        ],
        "digests": [build.recipe_digest if build else None for build in (build_a, build_b)],
        "asked": _recipe_differences(build_a, build_b),
    }


def _recipe_differences(a: Record | None, b: Record | None) -> dict[str, list[Any]]:
    """The fields in which the recipes of two builds differ, without their place in the matrix."""
    if not a or not b:
        return {}
    old, new = a.recipe.as_json(), b.recipe.as_json()
    names = sorted(old.keys() - {"row"})
    return {name: [old[name], new[name]] for name in names if old[name] != new[name]}


_OPTIONAL = {"file": "installed files", "sysctl": "kernel parameters", "boot": "boot parameters"}


def diff_text(answer: dict[str, Any]) -> str:
    """The answer of `compare_images` for a person: one change per line, then the counts."""
    notes = []
    if answer["not_compared"]:
        words = " and ".join(_OPTIONAL[kind] for kind in answer["not_compared"])
        it = "it" if len(answer["not_compared"]) == 1 else "them"
        notes.append(f"not compared: {words} (one image does not record {it})")
    if not answer["changes"]:
        return "\n".join([f"{answer['a']} and {answer['b']}: {_same(answer)}", *notes])
    lines = []
    for change in answer["changes"]:
        values = (change["old"], change["new"])
        both = " → ".join(value or "(empty)" for value in values if value is not None)
        lines.append(
            f"{change['severity']:6}  {change['what']:7}  {change['kind']:9}  {change['name']}  "
            f"{both}".rstrip()
        )
    total = ", ".join(f"{n} {severity}" for severity, n in answer["counts"].items() if n)
    return "\n".join([*lines, total, *notes])


def _same(answer: dict[str, Any]) -> str:
    """What can be said of two images without a recorded difference."""
    old, new = answer["digests"]
    if not (old and new):
        lacking = [name for name, digest in ((answer["a"], old), (answer["b"], new)) if not digest]
        return (
            "no difference on the images; whether one recipe made both is unknown without a recipe "
            f"digest of {' and '.join(lacking)}"
        )
    if old == new:
        return "no difference; they have one recipe digest"
    changes = [f"{name} {pair[0]} → {pair[1]}" for name, pair in answer["asked"].items()]
    why = (
        f"the recipes differ in {'; '.join(changes)}"
        if changes
        else (
            "the recipes are the same, but a file that is rendered or uploaded for the bake is not"
        )
    )
    return f"no difference on the images, but other recipe digests ({old[:12]} → {new[:12]}): {why}"


def compare_records(a: dict[str, Any], b: dict[str, Any]) -> list[Change]:
    """The differences between two build records, or the data of two version-info.json."""
    before = read_version_info(a, "the first record")
    return compare_version_infos(before, read_version_info(b, "the second record"))


def compare_version_infos(a: VersionInfo, b: VersionInfo) -> list[Change]:
    """The differences from image a to image b, by severity, then kind and name.

    Severities are in kiln/facts/knowledge/diff.yaml.
    """
    changes = []
    for kind, read in _READERS.items():
        before, after = read(a), read(b)
        if before is None or after is None:
            continue
        for name in sorted(before.keys() | after.keys()):
            for old, new in _pairs(before.get(name, Counter()), after.get(name, Counter())):
                changes.append(Change(_severity(kind, name, old, new), kind, name, old, new))
    return sorted(changes, key=lambda c: (_ORDER.index(c.severity), c.kind, c.name))


def _pairs(before: Counter[str], after: Counter[str]) -> Iterator[tuple[str | None, str | None]]:
    """Old and new values of one name; several values (two kernels) are compared as sets."""
    removed = sorted((before - after).elements(), key=versions.key)
    added = sorted((after - before).elements(), key=versions.key)
    if len(removed) == len(added) == 1:
        yield removed[0], added[0]
        return
    for value in removed:
        yield value, None
    for value in added:
        yield None, value


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


# Values by name; None if the bake did not record this kind.
_Values = dict[str, Counter[str]]
# What package tools call the architecture of a package that fits every one.
_ANY_ARCH = ("all", "noarch", "")


def _packages(info: VersionInfo) -> _Values:
    """By name, with the architecture of a package for another one than the image's, as dpkg does:
    the name in one image must not depend on what else is on it."""
    values: _Values = {}
    for package in info.packages:
        arch = vocabulary.UNAME_OF_DEB.get(package.arch, package.arch)
        foreign = bool(info.arch) and arch not in (info.arch, *_ANY_ARCH)
        name = f"{package.name}:{package.arch}" if foreign else package.name
        values.setdefault(name, Counter())[package.full_version] += 1
    return values


def _modules(info: VersionInfo) -> _Values:
    values: _Values = {}
    for module in info.modules:
        shown = f"{module.version or '?'} ({module.srcversion}) for {module.kernel}"
        values.setdefault(module.name, Counter())[shown] += 1
    return values


def _components(info: VersionInfo) -> _Values:
    parts = info.components.items()
    return {name: Counter([part.version]) for name, part in parts if part.version}


def _held(info: VersionInfo) -> _Values:
    """Held packages by name. Amazon Linux records name-version-release."""
    names = {f"{p.name}-{p.version}-{p.release}": p.name for p in info.packages}
    return {names.get(held, held): Counter([held]) for held in info.held}


def _paths(info: VersionInfo) -> _Values:
    return {
        name: Counter([value] if isinstance(value, str) else value)
        for name, value in info.paths.items()
    }


def _files(info: VersionInfo) -> _Values | None:
    """By path: the beginning of the hash and the mode, or the link's target."""
    if info.files is None:
        return None
    short = functools.partial(re.sub, r"^sha256:([0-9a-f]{16})[0-9a-f]*", r"sha256:\1…")
    return {path: Counter([short(text)]) for path, text in info.files.items()}


def _each(values: dict[str, str] | None) -> _Values | None:
    return None if values is None else {name: Counter([value]) for name, value in values.items()}


def recorded_values(info: VersionInfo) -> dict[str, dict[str, list[str]]]:
    """Kind → name → values: what is compared of an image, without what its bake did not record."""
    read = {kind: reader(info) for kind, reader in _READERS.items()}
    return {
        kind: {name: sorted(counts.elements()) for name, counts in values.items()}
        for kind, values in read.items()
        if values is not None
    }


_READERS: dict[str, Callable[[VersionInfo], _Values | None]] = {
    "os": lambda info: _each(info.os.model_dump()),
    "kernel": lambda info: _each(info.kernel.model_dump()),
    "component": _components,
    "module": _modules,
    "package": _packages,
    "unit": lambda info: _each({unit.name: unit.state for unit in info.units}),
    "held": _held,
    "path": _paths,
    "file": _files,
    "sysctl": lambda info: _each(info.sysctls),
    "boot": lambda info: _each(info.boot),
}
