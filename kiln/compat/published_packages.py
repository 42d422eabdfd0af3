"""Are a row's packages published, as far as `./invoke preflight --record` has recorded it?"""

from __future__ import annotations

from kiln import components
from kiln.base.errors import KilnError
from kiln.base.findings import Finding
from kiln.base.recipe import Recipe
from kiln.base.wanted_package import WantedPackage
from kiln.components import package_repositories
from kiln.facts.indexes import Judged, Published, judge_package, recorded_index

RULE = "PKG-NOT-PUBLISHED"


def judged_packages(recipe: Recipe) -> dict[WantedPackage, Judged]:
    """What the recorded indexes say of each package that the row installs.

    Empty if a component lacks what it needs: a rule reports that.
    """
    try:
        steps = package_repositories.steps(recipe)
        names = [entry.name for entry in package_repositories.of_row(recipe, steps)]
    except KilnError:
        return {}
    indexes = [recorded_index(recipe.distro.id, recipe.arch, name) for name in names]
    packages = [p for step in steps for listed in step.packages.values() for p in listed]
    return {package: judge_package(package, indexes) for package in packages}


def unpublished_packages(recipe: Recipe) -> list[Finding]:
    """An error for each package that is recorded as not published, at the version's place."""
    return [
        _finding(recipe, package, judged)
        for package, judged in judged_packages(recipe).items()
        if judged.state is Published.NO
    ]


def _finding(recipe: Recipe, package: WantedPackage, judged: Judged) -> Finding:
    field = components.get(package.component).request_field or "distro"
    nearest = f"the nearest is {judged.nearest}" if judged.nearest else "no version of it is"
    return Finding(
        "error",
        RULE,
        f"{package.component} installs {package}, which was not published for {recipe.distro.id} "
        f"({recipe.arch}) on {judged.recorded}: {nearest}",
        why="the bake would stop there: its repositories were asked, and none has it",
        hint="take a published version, or ask again: ./invoke preflight --record --distro "
        f"{recipe.distro.id}",
        source="this repository: kiln/facts/knowledge/indexes",
    ).at(recipe.row.place_of(field))
