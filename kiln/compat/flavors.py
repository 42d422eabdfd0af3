"""Rules about flavors: the parent AMIs of EKS, ECS and ParallelCluster, and the root volume."""

from __future__ import annotations

from typing import Any

from kiln import facts
from kiln.base import versions
from kiln.base.recipe import Recipe
from kiln.compat import Case, Objection, Objections, rule, rules
from kiln.facts import table


def _flavor(name: str) -> dict[str, Any]:
    entry: dict[str, Any] = table("distros")["flavors"][name]
    return entry


@rule("EKS-OS")
def eks_parent(recipe: Recipe, case: Case) -> Objections:
    """Support of a Kubernetes version ends, and EKS no longer publishes AL2 AMIs."""
    if recipe.flavor != "eks":
        return
    systems, lives = _flavor("eks")["os"], _flavor("eks")["kubernetes"]
    version, name = recipe.kubernetes, case.distro["name"]
    supported = ", ".join(
        each
        for each, life in lives.items()
        if case.today <= (facts.last_day(life["extended"]) or case.today)
    )
    window = systems.get(recipe.distro.id)
    if window is None:
        yield Objection(
            f"EKS has no optimized AMI of {recipe.distro.id}",
            f"it has AMIs of: {', '.join(systems)}",
        )
    elif version is None:
        if case.complete:
            yield Objection(
                "flavour eks without a Kubernetes version",
                f"set kubernetes: one of {supported}",
            )
        elif "last" in window:
            yield Objection(
                f"EKS AMIs of {name} ended on {window['ended']} with Kubernetes {window['last']}",
                advice=True,
            )
    else:
        if "last" in window and not versions.at_least(window["last"], version):
            yield Objection(
                f"EKS publishes no {name} AMIs for Kubernetes {version}: they ended on "
                f"{window['ended']} with {window['last']}",
                "choose another distribution",
            )
        yield from _kubernetes_life(version, lives, supported, case)


def _kubernetes_life(version: str, lives: dict[str, Any], supported: str, case: Case) -> Objections:
    life = lives.get(version)
    if life is None:
        yield Objection(
            f"Kubernetes {version} is not known to EKS",
            f"supported today: {supported}",
            unsure=versions.at_least(version, versions.newest(lives) or ""),
        )
        return
    standard, extended = facts.last_day(life["standard"]), facts.last_day(life["extended"])
    if extended and case.today > extended:
        yield Objection(
            f"EKS ended extended support of Kubernetes {version} on {extended}",
            f"supported today: {supported}",
        )
    elif standard and case.today > standard:
        yield Objection(
            f"Kubernetes {version} has been in paid extended support since {standard}",
            f"it ends on {extended}",
            advice=True,
        )


@rule("ECS-ARM")
def ecs_parent(recipe: Recipe, case: Case) -> Objections:
    """ECS-optimized GPU AMIs exist for few distributions and processors."""
    if recipe.flavor != "ecs":
        return
    arches, systems = _flavor("ecs")["arches"], ", ".join(_flavor("ecs")["os"])
    if recipe.arch not in arches:
        yield Objection(
            f"there is no ECS-optimized GPU AMI for {recipe.arch}",
            f"there are GPU AMIs for: {', '.join(arches)}",
        )
    if recipe.distro.id not in _flavor("ecs")["os"]:
        yield Objection(
            f"there is no ECS-optimized GPU AMI of {recipe.distro.id}",
            f"there are GPU AMIs of: {systems}",
        )


@rule("PC-OS")
def parallelcluster_parent(recipe: Recipe, case: Case) -> Objections:
    """Each ParallelCluster release supports a list of distributions."""
    if recipe.flavor != "parallelcluster":
        return
    systems = _flavor("parallelcluster")["os"]
    window = systems.get(recipe.distro.id)
    if window is None:
        yield Objection(
            f"ParallelCluster does not support {recipe.distro.id}",
            f"it supports: {', '.join(systems)}",
        )
        return
    newest = max(_flavor("parallelcluster")["brings"], key=versions.key)
    if recipe.parallelcluster is None and case.complete:
        yield Objection(
            "flavour parallelcluster without a version", f"set parallelcluster: {newest}"
        )
        return
    release, name = recipe.parallelcluster or newest, case.distro["name"]
    if versions.below(newest, release):
        yield Objection(
            f"ParallelCluster {release} is newer than {newest}, the newest known release",
            f"if AWS released it, add {release} to kiln/facts/knowledge/distros.yaml",
            unsure=True,
        )
    if "removed" in window and versions.at_least(release, window["removed"]):
        yield Objection(
            f"ParallelCluster removed {name} in {window['removed']}; {release} has no AMI of it",
            f"choose a release before {window['removed']}, or another distribution",
        )
    if "first" in window and versions.below(release, window["first"]):
        yield Objection(
            f"ParallelCluster supports {name} from {window['first']} on; {release} is older",
            f"set parallelcluster: {newest}",
        )


@rule("PC-EFA-DUP")
def parallelcluster_brings(recipe: Recipe, case: Case) -> Objections:
    """ParallelCluster's parent AMIs already have a driver and EFA."""
    if recipe.flavor != "parallelcluster" or not recipe.parallelcluster:
        return
    brings = _flavor("parallelcluster")["brings"].get(recipe.parallelcluster, {})
    others = [
        f"{name} {installed} (the row: {wanted})"
        for name, wanted in (("driver", recipe.driver), ("efa", recipe.efa))
        if (installed := brings.get(name)) and wanted and wanted != installed
    ]
    if others:
        yield Objection(
            f"ParallelCluster {recipe.parallelcluster}'s AMIs carry {' and '.join(others)}",
            "use the parent's versions, or remove them before installing others",
        )


@rule("VOL-PARENT")
def volume_holds_the_parent(recipe: Recipe, case: Case) -> Objections:
    """EC2 makes no volume that is smaller than its snapshot."""
    least = facts.parent_disk(recipe.flavor)
    if recipe.volume and recipe.volume.size < least:
        yield Objection(
            f"the volume has {recipe.volume.size} GiB, the parent AMI of {recipe.flavor} {least}",
            f"set volume: {{size: {least}}} or more",
        )


@rule("VOL-PACKER")
def volume_fits_packer(recipe: Recipe, case: Case) -> Objections:
    """EC2 has allowed more since September 2025; the plugin has not."""
    for name, most in rules()["VOL-PACKER"].limits.items():
        if recipe.volume and getattr(recipe.volume, name) > most:
            yield Objection(
                f"{name} {getattr(recipe.volume, name)}: Packer's plugin takes at most {most}",
                f"set {name}: {most} for the bake; instances may have more",
            )
