"""Rules about MIG: profiles, layouts, labels, drivers. The facts are in mig.yaml; what fits is
answered by the same code that applies MIG on the AMI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kiln import facts
from kiln.base import versions
from kiln.base.runtime_import import load
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import Verdict, instance_rule, rule, rules
from kiln.facts import InstanceType, table
from kiln.mig.check import check_label, warnings
from kiln.mig.profiles import gpu_types

_placement = load("gpu_mig.placement")


@instance_rule("MIG-GPU")
def profiles_exist(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    """Each GPU, and each memory size of it, has its own profile names."""
    if c.mig_label:
        for problem in check_label(c.mig_label, [target.type]):
            yield Verdict(problem)
    if not c.mig:
        return
    gpu = gpu_types().get(target.gpu)
    if gpu is None:
        families = dict.fromkeys(one.family for one in facts.instances().values() if one.mig)
        yield Verdict(
            f"{target.type} has {target.ec2_name}, which has no MIG",
            hint=f"these families have it: {', '.join(families)}",
        )
        return
    for wanted in dict.fromkeys(c.mig):
        if wanted not in gpu.profiles:
            yield Verdict(
                f"{target.type} ({gpu.product}) has no MIG profile {wanted}",
                hint=f"it has: {', '.join(gpu.profiles)}",
            )


@rule("MIG-LABEL", by_target=True)
def label_exists(c: Combination) -> Iterator[Verdict]:
    """Without a target a label has to fit at least one instance type."""
    if not c.mig_label or c.targets:
        return
    problems = []
    for one in facts.instances().values():
        if one.mig and one.arch == c.arch:
            found = check_label(c.mig_label, [one.type])
            if not found:
                return
            problems += found
    yield Verdict(
        problems[0],
        hint="the labels are in runtime/etc/kiln/mig-config.yaml; all-disabled leaves MIG off",
    )


@instance_rule("MIG-LAYOUT")
def profiles_fit(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    """The profiles need memory slices side by side, and no more compute slices than there are."""
    gpu = gpu_types().get(target.gpu)
    if gpu is None or not c.mig or any(name not in gpu.profiles for name in c.mig):
        return
    reason = _placement.why_not(gpu, list(c.mig))
    if reason:
        nearest = ", ".join(_placement.nearest(gpu, list(c.mig)))
        yield Verdict(
            f"{' + '.join(c.mig)} does not fit on {gpu.product} ({target.type}): {reason}",
            hint=f"nearest that fits: {nearest}" if nearest else "",
            unsure=bool(warnings(gpu, c.mig)),
        )


@instance_rule("MIG-DRV")
def driver_has_mig(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    """MIG on a GPU, and some of its profiles, came with a driver."""
    known: list[dict[str, Any]] = table("mig")["gpus"]
    gpu = next((entry for entry in known if entry["gpu"] == target.gpu), None)
    if gpu is None or not c.driver or not (c.mig or c.mig_label):
        return
    for entry in table("mig")["driver_minimums"]:
        if target.gpu in entry["gpus"] and versions.below(c.driver, entry["driver"]):
            yield Verdict(
                f"MIG on {target.ec2_name} ({target.type}) needs driver >= {entry['driver']}; "
                f"{c.driver} is older",
            )
    since: dict[str, str] = gpu.get("since_driver", {})
    for name in dict.fromkeys(c.mig):
        if name in since and versions.below(c.driver, since[name]):
            yield Verdict(
                f"MIG profile {name} came with driver {since[name]}; {c.driver} is older",
            )


@rule("MIG-EFA")
def mig_and_efa(c: Combination) -> Iterator[Verdict]:
    """MIG turns peer to peer off, so NCCL across machines gains nothing from EFA."""
    off = rules()["MIG-EFA"].limits["labels_without"]
    if (c.mig or (c.mig_label and c.mig_label not in off)) and c.efa:
        yield Verdict(
            "MIG turns GPU peer to peer off: NCCL over EFA is of no use between MIG instances",
            hint="leave one of them out",
        )
