"""The package repositories of a row: the distribution's own (archives.yaml) and the vendors'."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.components import Step
from kiln.components.component import operating_system


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
    signed: bool = True
    mirror_list: bool = False
    key_file: str = ""
    key_url: str = ""
    only: tuple[str, ...] = ()

    def release_files(self) -> list[str]:
        """The URLs of the signed files that name the repository's indexes; of apt only."""
        if self.suites == ("/",):
            return [f"{self.url}/InRelease"]
        return [f"{self.url}/dists/{suite}/InRelease" for suite in self.suites]


def row_repositories(recipe: Recipe, steps: Iterable[Step]) -> tuple[Repository, ...]:
    """The repositories from which a bake of the recipe installs packages."""
    vendors = [repository for step in steps for repository in _vendors(recipe, step)]
    return (*_distributions(recipe), *vendors)


def _distributions(recipe: Recipe) -> list[Repository]:
    """The parent AMI's own repositories, or the snapshot that the row is pinned to."""
    table, fields = facts.table("archives"), _fields(recipe)
    repositories = []
    for entry in table["archives"]:
        if all(fields[name] == value for name, value in entry["when"].items()):
            keys = table["keys"][entry["keys"]]
            repository = _repository(
                entry,
                entry["kind"],
                fields,
                signed=entry.get("signed", True),
                fingerprints=tuple(keys["fingerprints"]),
                key_file=keys.get("file", ""),
                key_url=keys.get("url", ""),
            )
            repositories.append(repository)
    service = facts.package_snapshots(recipe.distro.id)
    if service is None or recipe.package_snapshot is None or service.kind != "apt":
        return repositories
    lines = service.lines(recipe.distro.id, recipe.package_snapshot)
    return [_snapshot(line, repositories[0], number) for number, line in enumerate(lines, 1)]


def _snapshot(line: str, like: Repository, number: int) -> Repository:
    """The repository of a line of sources.list, with the keys of `like`."""
    words = [word for word in shlex.split(line)[1:] if not word.startswith("[")]
    url, suite, *parts = words
    name = f"{like.name}-snapshot-{number}"
    return replace(like, name=name, url=url, suites=(suite,), components=tuple(parts))


def _vendors(recipe: Recipe, step: Step) -> Iterator[Repository]:
    """The repositories that a component's script adds."""
    kind = "apt" if recipe.distro.family == "debian" else "rpm"
    known = facts.table("keys")["keys"]
    for variable, layout in facts.table("archives")["vendors"].items():
        url = step.env.get(variable)
        if url and kind in layout:
            yield _repository(
                {"name": layout["name"], **layout[kind]},
                kind,
                {**_fields(recipe), "url": url},
                fingerprints=tuple(str(known[name]["fingerprint"]) for name in step.keys.values()),
                key_url=next(each.url for each in step.downloads if each.env.endswith("_KEY")),
            )


def _repository(
    entry: dict[str, Any], kind: str, fields: dict[str, str], **more: Any
) -> Repository:
    """An entry of archives.yaml with its placeholders filled in."""
    listed = "mirror_list" in entry
    return Repository(
        name=entry["name"],
        kind=kind,
        url=str(entry["mirror_list" if listed else "url"]).format(**fields),
        suites=tuple(suite.format(**fields) for suite in entry.get("suites", ())),
        components=tuple(entry.get("components", ())),
        mirror_list=listed,
        only=tuple(entry.get("only", ())),
        **more,
    )


def _fields(recipe: Recipe) -> dict[str, str]:
    """The fields that conditions and placeholders of archives.yaml use."""
    return {
        "distro": recipe.distro.id,
        "os": operating_system(recipe),
        "arch": recipe.arch,
        "codename": str(facts.distro(recipe.distro.id).get("codename", "")),
        "release": recipe.package_snapshot or "latest",
        **facts.table("downloads")["processors"][recipe.arch],
    }
