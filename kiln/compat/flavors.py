"""Rules about flavors: the parent AMIs of EKS, ECS and ParallelCluster, and the root volume."""

from __future__ import annotations

from typing import Any

from kiln import facts
from kiln.base import versions
from kiln.base.recipe import Recipe
from kiln.compat import Case, Objection, Objections, rule, rules
from kiln.facts import table


def _flavor(name: str) -> dict[str, Any]:
    return dict(table("distros")["flavors"][name])


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
    ended = ""
    if window and "last" in window:
        ended = f"EKS AMIs of {name} ended on {window['ended']} with {window['last']}"
    if window is None:
        message = f"EKS has no optimized AMI of {recipe.distro.id}"
        yield Objection(message, f"it has AMIs of: {', '.join(systems)}")
    elif version is None:
        if case.complete:
            hint = f"set kubernetes: one of {supported}"
            yield Objection("flavor eks without a Kubernetes version", hint)
        elif ended:
            yield Objection(ended, advice=True)
    else:
        if ended and not versions.at_least(window["last"], version):
            yield Objection(ended, "choose another distribution")
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
        message = f"EKS ended extended support of Kubernetes {version} on {extended}"
        yield Objection(message, f"supported today: {supported}")
    elif standard and case.today > standard:
        message = f"Kubernetes {version} has been in paid extended support since {standard}"
        yield Objection(message, f"it ends on {extended}", advice=True)


@rule("ECS-ARM")
def ecs_parent(recipe: Recipe, case: Case) -> Objections:
    """ECS-optimized GPU AMIs exist for few distributions and processors."""
    if recipe.flavor != "ecs":
        return
    for value, block in ((recipe.arch, "arches"), (recipe.distro.id, "os")):
        known = _flavor("ecs")[block]
        if value not in known:
            message = f"there is no ECS-optimized GPU AMI for {value}"
            yield Objection(message, f"there are GPU AMIs for: {', '.join(known)}")


@rule("PC-OS")
def parallelcluster_parent(recipe: Recipe, case: Case) -> Objections:
    """Each ParallelCluster release supports a list of distributions."""
    if recipe.flavor != "parallelcluster":
        return
    systems = _flavor("parallelcluster")["os"]
    window = systems.get(recipe.distro.id)
    if window is None:
        message = f"ParallelCluster does not support {recipe.distro.id}"
        yield Objection(message, f"it supports: {', '.join(systems)}")
        return
    newest = max(_flavor("parallelcluster")["brings"], key=versions.key)
    if recipe.parallelcluster is None and case.complete:
        yield Objection(
            "flavor parallelcluster without a version", f"set parallelcluster: {newest}"
        )
        return
    release, name = recipe.parallelcluster or newest, case.distro["name"]
    if versions.below(newest, release):
        message = f"ParallelCluster {release} is newer than {newest}, the newest known release"
        hint = f"add {release} to kiln/facts/knowledge/distros.yaml"
        yield Objection(message, hint, unsure=True)
    if "removed" in window and versions.at_least(release, window["removed"]):
        message = f"ParallelCluster removed {name} in {window['removed']}"
        yield Objection(message, "choose an older release, or another distribution")
    if "first" in window and versions.below(release, window["first"]):
        message = f"ParallelCluster supports {name} from {window['first']} on; {release} is older"
        yield Objection(message, f"set parallelcluster: {newest}")


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
