"""Rules about the parent AMIs of EKS, ECS and ParallelCluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kiln import facts
from kiln.base import versions
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import Objection, rule, rules
from kiln.facts import table


def _flavor(name: str) -> dict[str, Any]:
    entry: dict[str, Any] = table("distros")["flavors"][name]
    return entry


@rule("EKS-OS")
def eks_parent(c: Combination) -> Iterator[Objection]:
    """Support of a Kubernetes version ends, and EKS no longer publishes AL2 AMIs."""
    if c.flavor != "eks":
        return
    flavor = _flavor("eks")
    if c.distro not in flavor["os"]:
        yield Objection(
            f"EKS has no optimized AMI of {c.distro}",
            hint=f"it has AMIs of: {', '.join(flavor['os'])}",
        )
        return
    window = flavor["os"][c.distro]
    if c.kubernetes is None:
        if c.complete:
            yield Objection(
                "flavour eks without a Kubernetes version",
                hint=f"set kubernetes: one of {', '.join(_living(c))}",
            )
        elif "last" in window:
            yield Objection(
                f"EKS AMIs of {c.about['name']} ended on {window['ended']} with Kubernetes "
                f"{window['last']}",
                advice=True,
            )
        return
    if "last" in window and not versions.at_least(window["last"], c.kubernetes):
        yield Objection(
            f"EKS publishes no {c.about['name']} AMIs for Kubernetes {c.kubernetes}: they ended on "
            f"{window['ended']} with {window['last']}",
        )
    life = flavor["kubernetes"].get(c.kubernetes)
    if life is None:
        yield Objection(
            f"Kubernetes {c.kubernetes} is not known to EKS",
            hint=f"supported today: {', '.join(_living(c))}",
            unsure=versions.at_least(c.kubernetes, versions.newest(flavor["kubernetes"]) or ""),
        )
        return
    standard, extended = facts.last_day(life["standard"]), facts.last_day(life["extended"])
    if extended and c.today > extended:
        yield Objection(
            f"EKS ended extended support of Kubernetes {c.kubernetes} on {extended}",
            hint=f"supported today: {', '.join(_living(c))}",
        )
    elif standard and c.today > standard:
        yield Objection(
            f"Kubernetes {c.kubernetes} has been in paid extended support since {standard}",
            hint=f"it ends on {extended}",
            advice=True,
        )


def _living(c: Combination) -> list[str]:
    return [
        version
        for version, life in _flavor("eks")["kubernetes"].items()
        if c.today <= (facts.last_day(life["extended"]) or c.today)
    ]


@rule("ECS-ARM")
def ecs_parent(c: Combination) -> Iterator[Objection]:
    """ECS-optimized GPU AMIs exist for few distributions and processors."""
    if c.flavor != "ecs":
        return
    flavor = _flavor("ecs")
    if c.arch not in flavor["arches"]:
        yield Objection(f"there is no ECS-optimized GPU AMI for {c.arch}")
    if c.distro not in flavor["os"]:
        yield Objection(
            f"there is no ECS-optimized GPU AMI of {c.distro}",
            hint=f"there are GPU AMIs of: {', '.join(flavor['os'])}",
        )


@rule("PC-OS")
def parallelcluster_parent(c: Combination) -> Iterator[Objection]:
    """Each ParallelCluster release supports a list of distributions."""
    if c.flavor != "parallelcluster":
        return
    systems = _flavor("parallelcluster")["os"]
    if c.distro not in systems:
        yield Objection(
            f"ParallelCluster does not support {c.distro}",
            hint=f"it supports: {', '.join(systems)}",
        )
        return
    newest = max(_flavor("parallelcluster")["brings"], key=versions.key)
    if c.parallelcluster is None and c.complete:
        yield Objection(
            "flavour parallelcluster without a version", hint=f"set parallelcluster: {newest}"
        )
        return
    release = c.parallelcluster or newest
    if versions.below(newest, release):
        yield Objection(
            f"ParallelCluster {release} is newer than {newest}, the newest known release",
            hint=f"if AWS released it, add {release} to kiln/facts/knowledge/distros.yaml",
            unsure=True,
        )
    window = systems[c.distro]
    if "removed" in window and versions.at_least(release, window["removed"]):
        yield Objection(
            f"ParallelCluster removed {c.about['name']} in {window['removed']}; "
            f"{release} has no AMI of it",
        )
    if "first" in window and versions.below(release, window["first"]):
        yield Objection(
            f"ParallelCluster supports {c.about['name']} from {window['first']} on; {release} is "
            "older",
        )


@rule("PC-EFA-DUP")
def parallelcluster_brings(c: Combination) -> Iterator[Objection]:
    """ParallelCluster's parent AMIs already have a driver and EFA."""
    if c.flavor != "parallelcluster" or not c.parallelcluster:
        return
    brings = _flavor("parallelcluster")["brings"].get(c.parallelcluster, {})
    others = [
        f"{name} {installed} (the row: {wanted})"
        for name, wanted in (("driver", c.driver), ("efa", c.efa))
        if (installed := brings.get(name)) and wanted and wanted != installed
    ]
    if others:
        yield Objection(
            f"ParallelCluster {c.parallelcluster}'s AMIs carry {' and '.join(others)}",
            hint="use the parent's versions, or remove them before installing others",
        )


@rule("VOL-PARENT")
def volume_holds_the_parent(c: Combination) -> Iterator[Objection]:
    """EC2 makes no volume that is smaller than its snapshot."""
    least = facts.parent_disk(c.flavor)
    if c.volume and c.volume.size < least:
        yield Objection(
            f"the volume has {c.volume.size} GiB, the parent AMI of {c.flavor} {least}",
            hint=f"set volume: {{size: {least}}} or more",
        )


@rule("VOL-PACKER")
def volume_is_one_of_packers(c: Combination) -> Iterator[Objection]:
    """EC2 has allowed more since September 2025; the plugin has not."""
    for name, most in rules()["VOL-PACKER"].limits.items():
        if c.volume and getattr(c.volume, name) > most:
            yield Objection(
                f"{name} {getattr(c.volume, name)}: Packer's plugin takes at most {most}",
                hint=f"set {name}: {most} for the bake; instances may have more",
            )
