"""Rules about MIG: profiles, layouts, labels, drivers. The facts are in mig.yaml; the code that
applies MIG on the AMI also decides here what fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kiln import facts
from kiln.base import versions
from kiln.base.runtime_import import runtime_module
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import Objection, instance_rule, rule, rules
from kiln.facts import InstanceType, table
from kiln.mig.check import check_label, label_layout, warnings
from kiln.mig.profiles import gpu_types

_placement = runtime_module("gpu_mig.placement")


@instance_rule("MIG-GPU")
def profiles_exist(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """Each GPU model and memory size has its own profile names."""
    # On a machine without MIG the unit does nothing: MIG-LABEL is about that.
    if c.mig_label and instance_type.mig:
        for problem in check_label(c.mig_label, [instance_type.type]):
            yield Objection(problem)
    if not c.mig:
        return
    gpu = gpu_types().get(instance_type.gpu)
    if gpu is None:
        families = dict.fromkeys(other.family for other in facts.instances().values() if other.mig)
        yield Objection(
            f"{instance_type.type} has {instance_type.ec2_name}, which has no MIG",
            hint=f"families with MIG: {', '.join(families)}",
        )
        return
    for wanted in dict.fromkeys(c.mig):
        if wanted not in gpu.profiles:
            yield Objection(
                f"{instance_type.type} ({gpu.product}) has no MIG profile {wanted}",
                hint=f"it has: {', '.join(gpu.profiles)}",
            )


@rule("MIG-LABEL", by_instance_type=True)
def label_exists(c: Combination) -> Iterator[Objection]:
    """If no instance type with MIG is given, a label must fit at least one type that exists. On
    machines without MIG it has no effect, which only warns."""
    if not c.mig_label or any(instance_type.mig for instance_type in c.instance_types):
        return
    problems = []
    for instance_type in facts.instances().values():
        if instance_type.mig and instance_type.arch == c.arch:
            misfits = check_label(c.mig_label, [instance_type.type])
            if not misfits:
                break
            problems += misfits
    else:
        yield Objection(
            problems[0],
            hint="the labels are in runtime/etc/kiln/mig-config.yaml; all-disabled leaves MIG off",
        )
        return
    if c.instance_types and c.mig_label not in rules()["MIG-EFA"].limits["labels_without"]:
        names = ", ".join(instance_type.type for instance_type in c.instance_types)
        yield Objection(
            f"MIG label {c.mig_label} has no effect on {names}: none has a GPU with MIG",
            hint="remove mig_config, or name instance types with MIG",
            advice=True,
        )


@instance_rule("MIG-LAYOUT")
def profiles_fit(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """The profiles must fit on one GPU: adjacent memory slices, and enough compute slices."""
    gpu = gpu_types().get(instance_type.gpu)
    if gpu is None or not c.mig or any(name not in gpu.profiles for name in c.mig):
        return
    reason = _placement.why_not(gpu, list(c.mig))
    if reason:
        nearest = ", ".join(_placement.nearest(gpu, list(c.mig)))
        yield Objection(
            f"{' + '.join(c.mig)} does not fit on {gpu.product} ({instance_type.type}): {reason}",
            hint=f"nearest that fits: {nearest}" if nearest else "",
            unsure=bool(warnings(gpu, c.mig)),
        )


@instance_rule("MIG-DRV")
def driver_has_mig(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """MIG on a GPU, and some of its profiles, need a minimum driver."""
    gpus: list[dict[str, Any]] = table("mig")["gpus"]
    gpu = next((entry for entry in gpus if entry["gpu"] == instance_type.gpu), None)
    if gpu is None or not c.driver:
        return
    on, of_label = label_layout(c.mig_label, instance_type) if c.mig_label else (False, [])
    if not (c.mig or on):
        return
    minimums = table("mig")["driver_minimums"]
    entry = next((entry for entry in minimums if instance_type.gpu in entry["gpus"]), None)
    if entry and versions.below(c.driver, entry["driver"]):
        yield Objection(
            f"MIG on {instance_type.ec2_name} ({instance_type.type}) needs driver >= "
            f"{entry['driver']}; {c.driver} is older",
        )
    since: dict[str, str] = gpu.get("since_driver", {})
    for name in dict.fromkeys([*c.mig, *of_label]):
        if name in since and versions.below(c.driver, since[name]):
            yield Objection(
                f"MIG profile {name} on {instance_type.ec2_name} ({instance_type.type}) needs "
                f"driver >= {since[name]}; {c.driver} is older",
            )


@instance_rule("MIG-CDMM")
def memory_of_the_driver(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """On EKS the driver manages the memory of GB200 and GB300 (CDMM), which excludes MIG."""
    if c.flavor != "eks" or not instance_type.imex:
        return
    if c.mig or (c.mig_label and label_layout(c.mig_label, instance_type)[0]):
        yield Objection(
            f"eks images let the driver manage the memory of {instance_type.ec2_name} (CDMM), "
            "and MIG is impossible then",
            hint="leave out the MIG layout, or use the flavor base",
        )


@rule("MIG-EFA")
def mig_and_efa(c: Combination) -> Iterator[Objection]:
    """MIG disables peer-to-peer access between GPUs, so NCCL gains nothing from EFA."""
    off = rules()["MIG-EFA"].limits["labels_without"]
    if (c.mig or (c.mig_label and c.mig_label not in off)) and c.efa:
        yield Objection(
            "MIG disables GPU peer-to-peer: NCCL over EFA gains nothing between MIG instances",
            hint="leave out MIG or EFA",
        )
