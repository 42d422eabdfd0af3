"""Rules about instance types, and about `latest` instead of a version."""

from __future__ import annotations

from collections.abc import Iterator

from kiln import facts
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import INSTANCE_CHECKS, Objection, instance_rule, rule, rules
from kiln.facts import InstanceType, table


@instance_rule("ARCH-INSTANCE")
def same_arch(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """An AMI boots on one processor architecture."""
    if instance_type.arch != c.arch:
        arm = sorted(
            {other.family for other in facts.instances().values() if other.arch == "arm64"}
        )
        yield Objection(
            f"{instance_type.type} is {instance_type.arch}, the image {c.arch}",
            hint=f"the arm64 GPU families are: {', '.join(arm)}",
        )


@rule("ARCH-BUILD")
def bakes_on_same_arch(c: Combination) -> Iterator[Objection]:
    """The instances that bake and check the image boot it too."""
    like = "g5g.xlarge" if c.arch == "arm64" else "g4dn.xlarge"
    for name in c.build_instances:
        instance_type = facts.instances().get(name)
        if instance_type and instance_type.arch != c.arch:
            yield Objection(
                f"{name} is {instance_type.arch}, the image {c.arch}",
                hint=f"bake and check it on a type such as {like}",
            )


@rule("INST-GONE", by_instance_type=True)
def offered(c: Combination) -> Iterator[Objection]:
    """EC2 retires families."""
    gone = [instance_type.type for instance_type in c.instance_types if not instance_type.offered]
    if gone:
        yield Objection(
            f"EC2 no longer offers {', '.join(gone)} (as of {table('instances')['as_of'][:7]})",
            hint="remove retired types from target_instance_types, unless your account has them",
        )


@rule("BUILD-INSTANCE")
def bakes_and_checks(c: Combination) -> Iterator[Objection]:
    """The instances that bake and check should have a GPU that this driver drives."""
    types = facts.instances()
    for name in c.build_instances:
        if name not in types:
            yield Objection(
                f"{name} has no known NVIDIA GPU: only compilation can be checked on it, not "
                "nvidia-smi",
                hint="bake on a small GPU instance type such as g4dn.xlarge or g5g.xlarge",
            )
            continue
        for rule_id, check in INSTANCE_CHECKS.items():
            if rules()[rule_id].level != "error" or rule_id == "ARCH-INSTANCE":
                continue
            for verdict in check(c, types[name]):
                if not verdict.advice:
                    yield Objection(
                        f"{name} bakes or checks this image but cannot run it: {verdict.message}",
                        hint="choose another instance_type or verify_instance_type",
                    )


@rule("PIN-LATEST")
def unpinned(c: Combination) -> Iterator[Objection]:
    """Two builds of one row must give the same AMI."""
    for name in c.latest:
        yield Objection(f"{name}: `latest` is not a version", hint="name a version")
