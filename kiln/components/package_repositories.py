"""The package repositories of a row: the distribution's own (archives.yaml) and the vendors'."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kiln import components, facts
from kiln.base.recipe import Recipe
from kiln.components import Step
from kiln.components.component import operating_system, system_of


@dataclass(frozen=True)
class Repository:
    """A repository as a machine of the row would have it configured.

    `kind` is apt or rpm. `url` is the repository's, or that of its `mirror_list`, whose first line
    is the repository's. `suites` and `components` are apt's; the suite "/" is a flat repository.
    Its metadata counts if it is signed by one of `fingerprints`; with `signed` false the vendor
    does not sign metadata. The keys come from `key_file` on this machine, or from `key_url`.
    `only` are patterns of the packages that are taken from it; without any, all are.
    """

    name: str
    kind: str
    url: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    fingerprints: tuple[str, ...]
    signed: bool
    mirror_list: bool
    key_file: str
    key_url: str
    only: tuple[str, ...] = ()

    def release_files(self) -> list[str]:
        """The URLs of the signed files that name the repository's indexes; of apt only."""
        if self.suites == ("/",):
            return [f"{self.url}/InRelease"]
        return [f"{self.url}/dists/{suite}/InRelease" for suite in self.suites]


def of_row(recipe: Recipe, steps: Iterable[Step]) -> tuple[Repository, ...]:
    """The repositories from which a bake of the recipe installs packages."""
    vendors = [repository for step in steps for repository in _of_vendor(recipe, step)]
    return (*_of_distribution(recipe), *vendors)


def _of_distribution(recipe: Recipe) -> list[Repository]:
    """The parent AMI's own repositories, or the snapshot that the row is pinned to."""
    table = facts.table("archives")
    fields = _fields(recipe)
    entries = [entry for entry in table["archives"] if _holds(entry["when"], fields)]
    repositories = [_made(entry, table["keys"][entry["keys"]], fields) for entry in entries]
    lines = _snapshot_lines(recipe)
    if not lines:
        return repositories
    like = repositories[0]
    return [_from_line(line, like, number) for number, line in enumerate(lines, 1)]


def _made(entry: dict[str, Any], keys: dict[str, Any], fields: dict[str, str]) -> Repository:
    listed = "mirror_list" in entry
    return Repository(
        name=entry["name"],
        kind=entry["kind"],
        url=str(entry["mirror_list" if listed else "url"]).format(**fields),
        suites=tuple(suite.format(**fields) for suite in entry.get("suites", ())),
        components=tuple(entry.get("components", ())),
        fingerprints=tuple(keys["fingerprints"]),
        signed=entry.get("signed", True),
        mirror_list=listed,
        key_file=keys.get("file", ""),
        key_url=keys.get("url", ""),
    )


def _snapshot_lines(recipe: Recipe) -> list[str]:
    """The lines of sources.list that take the place of the distribution's, for a pinned row."""
    service = facts.package_snapshots(recipe.distro.id)
    if service is None or recipe.package_snapshot is None or service.kind != "apt":
        return []
    return service.lines(recipe.distro.id, recipe.package_snapshot)


def _from_line(line: str, like: Repository, number: int) -> Repository:
    """The repository of a line of sources.list, with the keys of `like`."""
    words = [word for word in shlex.split(line)[1:] if not word.startswith("[")]
    url, suite, *parts = words
    return Repository(
        name=f"{like.name}-snapshot-{number}",
        kind="apt",
        url=url,
        suites=(suite,),
        components=tuple(parts),
        fingerprints=like.fingerprints,
        signed=True,
        mirror_list=False,
        key_file=like.key_file,
        key_url=like.key_url,
    )


def _of_vendor(recipe: Recipe, step: Step) -> Iterator[Repository]:
    """The repositories that a component's script adds."""
    for variable, layout in facts.table("archives")["vendors"].items():
        url = step.env.get(variable)
        kind = "apt" if recipe.distro.family == "debian" else "rpm"
        if not url or kind not in layout:
            continue
        shape = layout[kind]
        fields = {**_fields(recipe), "url": url}
        key = next(entry for entry in step.downloads if entry.env.endswith("_KEY"))
        keys = facts.table("keys")["keys"]
        yield Repository(
            name=layout["name"],
            kind=kind,
            url=shape["url"].format(**fields),
            suites=tuple(suite.format(**fields) for suite in shape.get("suites", ())),
            components=tuple(shape.get("components", ())),
            fingerprints=tuple(str(keys[name]["fingerprint"]) for name in step.keys.values()),
            signed=True,
            mirror_list=False,
            key_file="",
            key_url=key.url,
            only=tuple(shape.get("only", ())),
        )


def _holds(when: dict[str, str], fields: dict[str, str]) -> bool:
    return all(fields[name] == value for name, value in when.items())


def _fields(recipe: Recipe) -> dict[str, str]:
    """The fields that conditions and placeholders of archives.yaml use."""
    fields = _fields_of(recipe.distro.id, recipe.arch)
    # The matrix may name another family than the facts.
    own = {"os": operating_system(recipe), "release": recipe.package_snapshot or "latest"}
    return {**fields, **own}


def _fields_of(distro_id: str, arch: str) -> dict[str, str]:
    distro = facts.distro(distro_id)
    return {
        "distro": distro_id,
        "os": system_of(distro_id, str(distro["family"])),
        "arch": arch,
        "codename": str(distro.get("codename", "")),
        "release": "latest",
        **facts.table("downloads")["processors"][arch],
    }


def steps(recipe: Recipe) -> tuple[Step, ...]:
    """What each component of the recipe does, in bake order."""
    return tuple(components.get(name).for_recipe(recipe) for name in recipe.components)
