"""Two images → what was added, removed and changed between them, the most severe first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kiln.base import versions, vocabulary
from kiln.facts import table
from kiln.image import version_info
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
    if unknown], "without_digest": {name: why}, "asked": {field of the recipe: [old, new]}}`.
    """
    before, build_a = version_info.load_version_info(a)
    after, build_b = version_info.load_version_info(b)
    with version_info.reading(f"{a} or {b}"):
        changes = compare_records(before, after)
    counts = Counter[str](change.severity for change in changes)
    return {
        "a": a,
        "b": b,
        "changes": [change.as_json() for change in changes],
        "counts": {severity: counts[severity] for severity in _ORDER},
        "not_compared": not_compared(before, after),
        "digests": [build.recipe_digest if build else None for build in (build_a, build_b)],
        "without_digest": {
            name: _why_no_digest(build)
            for name, build in ((a, build_a), (b, build_b))
            if build is None or not build.recipe_digest
        },
        "asked": _recipe_differences(build_a, build_b),
    }


def not_compared(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The kinds that an older bake did not record in one of two images."""
    keys = {"file": "files", "sysctl": "sysctls", "boot": "boot"}
    return [kind for kind, key in keys.items() if key not in a or key not in b]


def _why_no_digest(build: Record | None) -> str:
    if build is None:
        return "there is no record of its build"
    return "its record has none"


def _recipe_differences(a: Record | None, b: Record | None) -> dict[str, list[Any]]:
    """The fields in which the recipes of two builds differ, without their place in the matrix."""
    if not a or not b:
        return {}
    names = (a.recipe.keys() | b.recipe.keys()) - {"row"}
    values = {name: [a.recipe.get(name), b.recipe.get(name)] for name in sorted(names)}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}


def diff_text(answer: dict[str, Any]) -> str:
    """The answer of `compare_images` for a person: one change per line, then the counts."""
    notes = []
    if answer["not_compared"]:
        words = " and ".join(_KINDS[kind] for kind in answer["not_compared"])
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


_KINDS = {"file": "installed files", "sysctl": "kernel parameters", "boot": "boot parameters"}


def _same(answer: dict[str, Any]) -> str:
    """What can be said of two images without a recorded difference."""
    old, new = answer["digests"]
    if answer["without_digest"]:
        lacking = "; ".join(f"{name}: {why}" for name, why in answer["without_digest"].items())
        return (
            "no difference on the images; whether one recipe made both is not known, without a "
            f"recipe digest of each ({lacking})"
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


def compare_records(record_a: dict[str, Any], record_b: dict[str, Any]) -> list[Change]:
    """The differences from image a to image b, by severity, then kind and name.

    Each is a build record or the data of a version-info.json. Severities are in
    kiln/facts/knowledge/diff.yaml. Raises KilnError (exit status 2) if one holds no version-info.
    """
    a = version_info.of(record_a, "the first record")
    b = version_info.of(record_b, "the second record")
    changes = []
    skipped = not_compared(a, b)
    for kind, read in _READERS.items():
        if kind in skipped:
            continue
        before, after = read(a), read(b)
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


_Values = dict[str, Counter[str]]
# What package tools call the architecture of a package that fits every one, and of a key.
_OF_ANY_ARCH = ("all", "noarch", "(none)", "")


def _packages(info: dict[str, Any]) -> _Values:
    """By name, with the architecture of a package for another one than the image's, as dpkg does:
    the name in one image must not depend on what else is on it."""
    own = info.get("arch")
    values: _Values = {}
    for package in version_info.installed_packages(info):
        arch = vocabulary.UNAME_OF_DEB.get(package.arch, package.arch)
        foreign = bool(own) and arch not in (own, *_OF_ANY_ARCH)
        name = f"{package.name}:{package.arch}" if foreign else package.name
        values.setdefault(name, Counter())[package.version] += 1
    return values


def _modules(info: dict[str, Any]) -> _Values:
    values: _Values = {}
    for module in info.get("modules", ()):
        shown = f"{module['version'] or '?'} ({module['srcversion']}) for {module['kernel']}"
        values.setdefault(module["name"], Counter())[shown] += 1
    return values


def _components(info: dict[str, Any]) -> _Values:
    return {
        name: Counter([str(record["version"])])
        for name, record in info.get("components", {}).items()
        if record.get("version")
    }


def _fields(key: str) -> Callable[[dict[str, Any]], _Values]:
    def read(info: dict[str, Any]) -> _Values:
        return {name: Counter([str(value)]) for name, value in info.get(key, {}).items()}

    return read


def _units(info: dict[str, Any]) -> _Values:
    return {unit["name"]: Counter([unit["state"]]) for unit in info.get("units", ())}


def _held(info: dict[str, Any]) -> _Values:
    """Held packages by name. Amazon Linux records name-version-release."""
    names = {f"{p['name']}-{p['version']}-{p['release']}": p["name"] for p in info["packages"]}
    return {names.get(held, held): Counter([held]) for held in info.get("held", ())}


def _paths(info: dict[str, Any]) -> _Values:
    return {
        name: Counter([value] if isinstance(value, str) else value)
        for name, value in info.get("paths", {}).items()
    }


def _files(info: dict[str, Any]) -> _Values:
    """By path: the beginning of the hash and the mode, or the link's target."""
    return {
        path: Counter([re.sub(r"^sha256:([0-9a-f]{16})[0-9a-f]*", r"sha256:\1…", text)])
        for path, text in info.get("files", {}).items()
    }


def facts_of(info: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """What `compare_records` compares of an image: kind → name → values; a kind that its bake did
    not record is not there."""
    skipped = not_compared(info, info)
    return {
        kind: {name: sorted(values.elements()) for name, values in read(info).items()}
        for kind, read in _READERS.items()
        if kind not in skipped
    }


_READERS: dict[str, Callable[[dict[str, Any]], _Values]] = {
    "os": _fields("os"),
    "kernel": _fields("kernel"),
    "component": _components,
    "module": _modules,
    "package": _packages,
    "unit": _units,
    "held": _held,
    "path": _paths,
    "file": _files,
    "sysctl": _fields("sysctls"),
    "boot": _fields("boot"),
}
