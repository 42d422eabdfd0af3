"""The distribution's packages as they were: where the bake takes them from in a pinned row."""

from __future__ import annotations

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.components.component import Component, needed

RELEASEVER = "etc/dnf/vars/releasever"
SOURCES = "etc/apt/sources.list.d/kiln-package-snapshot.list"


def environment(recipe: Recipe) -> dict[str, str]:
    """The release or the time."""
    return {"PACKAGE_SNAPSHOT": needed(recipe.package_snapshot, "package_snapshot", recipe)}


def files(recipe: Recipe) -> dict[str, str]:
    """dnf's variable that chooses the release, or the list of package sources for the bake."""
    snapshot = needed(recipe.package_snapshot, "package_snapshot", recipe)
    service = facts.package_snapshots(recipe.distro.id)
    if service is None:
        return {}
    if service.kind == "releasever":
        return {RELEASEVER: f"{snapshot}\n"}
    lines = service.lines(recipe.distro.id, snapshot)
    return {SOURCES: "".join(f"{line}\n" for line in lines)}


COMPONENT = Component(
    name="package-snapshot",
    what="the distribution's packages as of the row's package_snapshot",
    needs="package_snapshot",
    optional=False,
    environment=environment,
    files=files,
)
