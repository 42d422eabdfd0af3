"""Rules about GPUs: which driver and which kernel module an architecture takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kiln import facts
from kiln.base import versions
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import Verdict, instance_rule, rule, rules
from kiln.facts import InstanceType, table


@instance_rule("GPU-KEPLER")
def kepler(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    """Kepler ended long ago."""
    if target.gpu_arch == "kepler":
        yield from _past_last(c, target)


@instance_rule("GPU-VOLTA")
def volta(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    """Maxwell, Pascal and Volta ended with the long-term branch and with CUDA 12."""
    if target.gpu_arch in {"maxwell", "pascal", "volta"}:
        yield from _past_last(c, target)


def _past_last(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    last = table("drivers")["architectures"][target.gpu_arch]
    branch, major = last["last_branch"], last["last_cuda_major"]
    too_new = []
    if c.branch_name and not versions.at_least(branch, c.branch_name):
        too_new.append(f"driver {c.driver}")
    if c.cuda_major and not versions.at_least(major, c.cuda_major):
        too_new.append(f"CUDA {c.cuda}")
    if too_new:
        yield Verdict(
            f"{target.type} has {target.ec2_name} ({target.gpu_arch}), whose last driver branch is "
            f"{branch} and last CUDA {major}.x: {' and '.join(too_new)} is too new",
        )


@instance_rule("GPU-OPEN-OLD")
def open_on_old(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    """Open modules drive Turing and newer."""
    if c.modules == {"open"} and target.open_modules == "unsupported":
        yield Verdict(
            f"open kernel modules support Turing and newer; {target.type} has {target.ec2_name} "
            f"({target.gpu_arch}) and needs the proprietary module",
        )


@instance_rule("GPU-BLACKWELL-OPEN")
def blackwell(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    """Blackwell takes open modules only, from the branch that first knew the GPU."""
    if target.gpu_arch != "blackwell":
        return
    if c.modules == {"proprietary"}:
        yield Verdict(
            f"{target.type} has {target.ec2_name} (Blackwell): only open kernel modules drive it",
        )
    yield from _too_new(c, target)


@instance_rule("GPU-HOPPER")
def hopper(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    """Hopper's first branch, and the one AWS started with."""
    if target.gpu_arch != "hopper" or not c.branch_name:
        return
    clash = list(_too_new(c, target))
    yield from clash
    usual = table("drivers")["gpus"][target.gpu].get("used_by_aws_from")
    if not clash and usual and versions.below(c.branch_name, usual):
        yield Verdict(
            f"{target.type} on driver {c.driver}: AWS images use branch {usual} or newer for "
            f"{target.ec2_name}",
            hint=f"take a driver of branch {usual} or newer",
            advice=True,
        )


@instance_rule("GPU-MIN")
def too_new_for_driver(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    """Any other GPU that is newer than the driver."""
    if target.gpu_arch not in {"blackwell", "hopper"}:
        yield from _too_new(c, target)


def _too_new(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    known = table("drivers")["gpus"].get(target.gpu)
    if not known or not c.branch_name:
        return
    first = known["first_branch"]
    if versions.below(c.branch_name, first):
        yield Verdict(
            f"{target.type} has {target.ec2_name}, first known to driver branch {first}; "
            f"{c.driver} does not know it",
            unsure=not facts.confirmed(known) and not _surely_unknown(c, known),
        )


def _surely_unknown(c: Combination, known: Mapping[str, str]) -> bool:
    """Is the driver older than the first that knew any GPU of the architecture?"""
    first = known.get("unknown_before")
    return bool(first and c.driver and versions.below(c.driver, first))


@instance_rule("GPU-OPEN-G")
def open_on_g(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    """AWS itself does not run open modules there: GSP firmware cannot be turned off with them."""
    families = rules()["GPU-OPEN-G"].limits["families"]
    if c.modules == {"open"} and target.family in families:
        yield Verdict(
            f"EKS forces the proprietary module and turns GSP off on {', '.join(families)}; open "
            f"modules cannot turn GSP off ({target.type})",
            hint=_with_proprietary(c),
        )


def _with_proprietary(c: Combination) -> str:
    if c.branch and "proprietary" not in c.branch.modules:
        return f"branch {c.branch.name} has no proprietary module: take an older branch for it"
    return "kernel_module: both bakes the proprietary one too and loads it there"


@instance_rule("GPU-GRID")
def fractional(c: Combination, target: InstanceType) -> Iterator[Verdict]:
    """A slice of a GPU is a vGPU: NVIDIA's data-centre driver does not drive it."""
    if target.grid_driver and c.driver_kind != "grid":
        yield Verdict(
            f"{target.type} has a fraction of one {target.ec2_name} and needs the GRID driver from "
            "s3://ec2-linux-nvidia-drivers, not the data-centre driver",
            hint="choose whole GPUs, or bake a GRID image elsewhere: AMI Kiln has no GRID stack",
        )


@rule("GPU-620")
def no_proprietary(c: Combination) -> Iterator[Verdict]:
    """Branches that ship open modules only, at NVIDIA or in the distribution."""
    if "proprietary" not in c.modules or not c.branch_name:
        return
    if c.branch and "proprietary" not in c.branch.modules:
        yield Verdict(
            f"driver branch {c.branch_name} ships no proprietary kernel modules",
        )
        return
    from_here = c.about.get("open_only_from")
    if from_here and versions.at_least(c.branch_name, from_here):
        yield Verdict(
            f"{c.about['name']} packages driver branch {c.branch_name} with open modules only",
            unsure=c.driver_from != "distro",
        )
