"""How well is it known that what a bake of a row fetches exists?

Each package, file and unit is *recorded* (`./invoke preflight --record` found it, or a build in AWS
downloaded it), *seen* (somebody's public use: `kiln/facts/knowledge/evidence.yaml`) or *assumed*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from kiln import components, facts
from kiln.base import overlay
from kiln.base.errors import KilnError
from kiln.base.findings import Finding, Place
from kiln.base.recipe import Recipe
from kiln.compat.published_packages import judged_packages
from kiln.components import Step, package_repositories
from kiln.facts import lock_file
from kiln.facts.evidence import (
    file_source,
    known_units,
    package_source,
    parent_source,
    signed_file,
)
from kiln.facts.indexes import Published

RULE = "EVIDENCE-ASSUMED"
KINDS = ("packages", "files", "units")


class Basis(Enum):
    """Where the existence of something is known from."""

    RECORDED = "recorded"
    SEEN = "seen"
    ASSUMED = "assumed"


@dataclass(frozen=True)
class Evidence:
    """A package, file or unit of a row (`kind` is one of KINDS) and where it is known from."""

    kind: str
    what: str
    component: str
    basis: Basis
    source: str
    place: Place


def evidence_of(recipe: Recipe) -> tuple[Evidence, ...]:
    """The evidence of everything that a bake of the row fetches or enables, in bake order.

    Empty if a component lacks what it needs: a rule reports that.
    """
    try:
        steps = package_repositories.steps(recipe)
    except KilnError:
        return ()
    evidence = [*_packages(recipe, steps), *_files(recipe, steps), *_units(recipe)]
    return tuple(dict.fromkeys(evidence))


def counts(evidence: Iterable[Evidence]) -> dict[str, dict[str, int]]:
    """How many packages, files and units are recorded, seen and assumed."""
    listed = Counter((item.kind, item.basis) for item in evidence)
    return {kind: {basis.value: listed[kind, basis] for basis in Basis} for kind in KINDS}


def counts_lines(counted: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The counts for a person, a line per kind: `packages 9 recorded, 31 seen, 4 assumed`."""
    return [
        f"{kind:<8} " + ", ".join(f"{number} {basis}" for basis, number in counted[kind].items())
        for kind in KINDS
    ]


def assumed_things(recipe: Recipe) -> list[Finding]:
    """A warning for each component of the row that fetches or enables what is only assumed;
    `check --strict` refuses them."""
    assumed: dict[tuple[str, Place], list[str]] = {}
    for item in evidence_of(recipe):
        if item.basis is Basis.ASSUMED:
            assumed.setdefault((item.component, item.place), []).append(item.what)
    return [
        Finding(
            "warning",
            RULE,
            f"{component} needs what is only assumed to exist: {', '.join(things)}",
            why="no index that was recorded has it, and nobody was seen using it",
            hint="./invoke preflight --record where the vendors' hosts answer, or add where it was "
            f"seen to {table}",
            source=source,
            component=component,
        ).at(place)
        for (component, place), things in assumed.items()
        for table, source in [_files_for(component)]
    ]


def _files_for(component: str) -> tuple[str, str]:
    """The table to which the owner of a component adds what was seen, and the file that a finding
    about the component rests on."""
    if components.is_ours(component):
        table = "kiln/facts/knowledge/evidence.yaml"
        return table, f"this repository: {table}"
    file = overlay.component_files(component)[-1]
    table = overlay.shown_path(file.parents[1] / "facts" / "evidence.yaml")
    return f"{table} (docs/overlay.md)", f"the overlay: {overlay.shown_path(file)}"


def _packages(recipe: Recipe, steps: tuple[Step, ...]) -> Iterator[Evidence]:
    urls = tuple(entry.url for entry in package_repositories.of_row(recipe, steps))
    names = {step.name: _name_source(step) for step in steps}
    for package, judged in judged_packages(recipe).items():
        # Whatever version there is of a package, its name is what must exist.
        of_name = "" if package.version else names[package.component]
        on_parent = parent_source(package, recipe.flavor, recipe.distro.id)
        source = package_source(package, urls) or on_parent or of_name
        basis = Basis.SEEN if source else Basis.ASSUMED
        if judged.state is Published.YES:
            basis, source = Basis.RECORDED, f"index of {judged.recorded}"
        component = package.component
        yield Evidence(
            "packages", str(package), component, basis, source, _place(recipe, component)
        )


def _name_source(step: Step) -> str:
    """Where the names of a component's packages were seen; "" if one of them is not confirmed."""
    rows = [row for row in step.rows if row.file == "packages.yaml"]
    return "; ".join(row.source for row in rows) if all(row.confirmed for row in rows) else ""


def _files(recipe: Recipe, steps: tuple[Step, ...]) -> Iterator[Evidence]:
    locked = {entry["url"]: str(entry.get("source") or "") for entry in _locked()}
    for step in steps:
        for download in step.downloads:
            source = locked.get(download.url, "")
            if source.startswith(lock_file.SEEN_BY):
                basis = Basis.RECORDED
            else:
                source = _seen_file(download.url)
                basis = Basis.SEEN if source else Basis.ASSUMED
            yield Evidence(
                "files", download.url, step.name, basis, source, _place(recipe, step.name)
            )


def _seen_file(url: str) -> str:
    """Where a file, or the file whose signature it is, was seen; "" if nowhere."""
    published = facts.known_sha256(url)
    hashed = published.source if published and published.confirmed else ""
    signed, vendor = signed_file(url)
    beside = signed and _seen_file(signed)
    return file_source(url) or hashed or (f"{beside}; {vendor}" if beside else "")


def _locked() -> list[dict[str, object]]:
    entries: list[dict[str, object]] = lock_file.read_lock_file()["artifacts"]
    return entries


def _units(recipe: Recipe) -> Iterator[Evidence]:
    for unit in known_units():
        wanted = unit.component in recipe.components or (unit.flavor == recipe.flavor != "base")
        if wanted and (not unit.distros or recipe.distro.id in unit.distros):
            basis = Basis.SEEN if unit.source else Basis.ASSUMED
            component = unit.component or f"the parent AMI of {unit.flavor}"
            yield Evidence(
                "units", unit.name, component, basis, unit.source, _place(recipe, unit.component)
            )


def _place(recipe: Recipe, component: str) -> Place:
    """Where the row asks for the component."""
    if component not in recipe.components:
        return recipe.row.place_of("flavors", "distro")
    return recipe.row.place_of(components.get(component).request_field or "distro")
