"""The Lustre client, for FSx for Lustre."""

from __future__ import annotations

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.components.component import (
    Component,
    Download,
    Environment,
    download,
    operating_system,
    packages,
    repository,
)


def environment(recipe: Recipe) -> Environment:
    """Where the client's packages are: a topic of Amazon Linux 2's extras, or FSx's repository."""
    lustre = facts.table("packages")["lustre"]
    return {
        "LUSTRE_TOPIC": lustre["topics"].get(recipe.distro.id, ""),
        "LUSTRE_SUITE": _suite(recipe),
        "LUSTRE_REPO_URL": repository(recipe, "LUSTRE_REPO_URL"),
        "LUSTRE_OS_PACKAGES": packages(recipe, "lustre-client"),
    }


def _suite(recipe: Recipe) -> str:
    """The suite of FSx's repository, which has Ubuntu's codenames only."""
    if operating_system(recipe) != "ubuntu":
        return ""
    return str(facts.distro(recipe.distro.id).get("codename", ""))


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """The signing key of FSx's repository, which is for Ubuntu only."""
    return download(recipe, "LUSTRE_KEY")


COMPONENT = Component(
    name="lustre-client",
    what="Lustre client, for FSx for Lustre",
    keys={"LUSTRE_KEY_FINGERPRINT": "fsx-lustre"},
    environment=environment,
    downloads=downloads,
)
