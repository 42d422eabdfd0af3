"""Rules about instance types, and about versions that are none."""

from __future__ import annotations

from collections.abc import Iterator

from kiln import facts
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import INSTANCE_CHECKS, Verdict, instance_rule, rule, rules
from kiln.facts import InstanceType, table


@instance_rule("ARCH-INSTANCE")
def same_arch(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    """An AMI boots on one processor architecture."""
    if target.arch != c.arch:
        arm = sorted({one.family for one in facts.instances().values() if one.arch == "arm64"})
        yield Verdict(
            f"{target.type} is {target.arch}, the image {c.arch}",
            hint=f"the arm64 GPU families are: {', '.join(arm)}",
        )


@rule("ARCH-INSTANCE")
def bakes_on_same_arch(c: Combination) -> Iterator[Verdict]:
    """What bakes and what checks boots the image too."""
    for name in c.build_instances:
        if name in facts.instances():
            yield from same_arch(c, facts.instance(name))


@rule("INST-GONE", by_target=True)
def offered(c: Combination) -> Iterator[Verdict]:
    """EC2 retires families."""
    gone = [target.type for target in c.targets if not target.offered]
    if gone:
        verb = "is" if len(gone) == 1 else "are"
        yield Verdict(
            f"{', '.join(gone)} {verb} not in EC2's offerings of {table('instances')['as_of'][:7]}",
            hint="take retired types out of target_instance_types, unless your account has them",
        )


@rule("BUILD-INSTANCE")
def bakes_and_checks(c: Combination) -> Iterator[Verdict]:
    """The machine that bakes or checks should have a GPU this driver drives."""
    known = facts.instances()
    for name in c.build_instances:
        if name not in known:
            yield Verdict(
                f"{name} has no NVIDIA GPU that AMI Kiln knows: nvidia-smi cannot be checked on "
                "it, only what compiles",
                hint="bake on a small GPU instance type such as g4dn.xlarge or g5g.xlarge",
            )
            continue
        for rule_id, check in INSTANCE_CHECKS.items():
            if rules()[rule_id].level != "error" or rule_id == "ARCH-INSTANCE":
                continue
            for verdict in check(c, known[name]):
                if not verdict.advice:
                    yield Verdict(
                        f"{name} bakes or checks this image but cannot run it: {verdict.message}",
                        hint="choose another instance_type or verify_instance_type",
                    )


@rule("PIN-LATEST")
def unpinned(c: Combination) -> Iterator[Verdict]:
    """Two builds of one row have to be equal."""
    for name in c.latest:
        yield Verdict(f"{name}: `latest` is not a version", hint="name the version you want")
