"""Rules about GPUs: which driver and kernel module an architecture needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kiln import facts
from kiln.base import versions
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import Objection, instance_rule, rule, rules
from kiln.facts import InstanceType, table


@instance_rule("GPU-KEPLER")
def kepler(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """Kepler: the last driver branch and CUDA."""
    if instance_type.gpu_arch == "kepler":
        yield from _past_last(c, instance_type)


@instance_rule("GPU-VOLTA")
def volta(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """Maxwell, Pascal and Volta: support ended with a long-term branch and CUDA 12."""
    if instance_type.gpu_arch in {"maxwell", "pascal", "volta"}:
        yield from _past_last(c, instance_type)


def _gpu(instance_type: InstanceType) -> str:
    return f"{instance_type.type} has {instance_type.ec2_name} ({instance_type.gpu_arch})"


def _past_last(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    last = table("drivers")["architectures"][instance_type.gpu_arch]
    branch, major = last["last_branch"], last["last_cuda_major"]
    too_new = []
    if c.branch_name and not versions.at_least(branch, c.branch_name):
        too_new.append(f"driver {c.driver}")
    if c.cuda_major and not versions.at_least(major, c.cuda_major):
        too_new.append(f"CUDA {c.cuda}")
    if too_new:
        yield Objection(
            f"{_gpu(instance_type)}, whose last driver branch is {branch} and last CUDA "
            f"{major}.x: {' and '.join(too_new)} is too new",
        )


@instance_rule("GPU-OPEN-OLD")
def open_on_old(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """Open kernel modules support Turing and newer."""
    if c.modules == {"open"} and instance_type.open_modules == "unsupported":
        yield Objection(
            f"open kernel modules support Turing and newer; {_gpu(instance_type)} and needs the "
            "proprietary module",
        )


@instance_rule("GPU-BLACKWELL-OPEN")
def blackwell(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """Blackwell needs open kernel modules, of a branch that supports the GPU."""
    if instance_type.gpu_arch != "blackwell":
        return
    if c.modules == {"proprietary"}:
        yield Objection(
            f"{_gpu(instance_type)}: only open kernel modules drive it",
        )
    yield from _too_new(c, instance_type)


@instance_rule("GPU-HOPPER")
def hopper(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """Hopper: the first branch that supports it, and the first that AWS uses."""
    if instance_type.gpu_arch != "hopper" or not c.branch_name:
        return
    clash = list(_too_new(c, instance_type))
    yield from clash
    usual = table("drivers")["gpus"][instance_type.gpu].get("used_by_aws_from")
    if not clash and usual and versions.below(c.branch_name, usual):
        yield Objection(
            f"{instance_type.type} on driver {c.driver}: AWS images use branch {usual} or newer "
            f"for {instance_type.ec2_name}",
            hint=f"choose a driver of branch {usual} or newer",
            advice=True,
        )


@instance_rule("GPU-MIN")
def too_new_for_driver(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """Any other GPU that is too new for the driver."""
    if instance_type.gpu_arch not in {"blackwell", "hopper"}:
        yield from _too_new(c, instance_type)


def _too_new(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    gpu = table("drivers")["gpus"].get(instance_type.gpu)
    if not gpu or not c.branch_name:
        return
    first = gpu["first_branch"]
    if versions.below(c.branch_name, first):
        yield Objection(
            f"{instance_type.type} has {instance_type.ec2_name}, first supported by driver branch "
            f"{first}; {c.driver} does not know it",
            unsure=not facts.confirmed(gpu) and not _surely_unknown(c, gpu),
        )


def _surely_unknown(c: Combination, gpu: Mapping[str, str]) -> bool:
    """Is the driver older than the first that supports any GPU of the architecture?"""
    first = gpu.get("unknown_before")
    return bool(first and c.driver and versions.below(c.driver, first))


@instance_rule("GPU-OPEN-G")
def open_on_g(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """AWS does not use open kernel modules there: they cannot turn GSP firmware off."""
    families = rules()["GPU-OPEN-G"].limits["families"]
    if c.modules == {"open"} and instance_type.family in families:
        yield Objection(
            f"EKS forces the proprietary module and turns GSP off on {', '.join(families)}; open "
            f"modules cannot turn GSP off ({instance_type.type})",
            hint=_with_proprietary(c),
        )


def _with_proprietary(c: Combination) -> str:
    if c.branch and "proprietary" not in c.branch.modules:
        return f"branch {c.branch.name} has no proprietary module: choose an older branch for it"
    return "set kernel_module: both, which also bakes the proprietary module and loads it there"


@instance_rule("GPU-GRID")
def fractional(c: Combination, instance_type: InstanceType) -> Iterator[Objection]:
    """A fractional GPU is a vGPU, which NVIDIA's data-centre driver does not support."""
    if instance_type.grid_driver:
        yield Objection(
            f"{instance_type.type} has a fraction of one {instance_type.ec2_name} and needs the "
            "GRID driver from s3://ec2-linux-nvidia-drivers, not the data-centre driver",
            hint="choose a type with whole GPUs, or bake a GRID image elsewhere: AMI Kiln has no "
            "GRID stack",
        )


@rule("GPU-620")
def no_proprietary(c: Combination) -> Iterator[Objection]:
    """Branches that ship open kernel modules only, from NVIDIA or from the distribution."""
    if "proprietary" not in c.modules or not c.branch_name:
        return
    if c.branch and "proprietary" not in c.branch.modules:
        yield Objection(
            f"driver branch {c.branch_name} ships no proprietary kernel modules",
        )
        return
    from_here = c.about.get("open_only_from")
    if from_here and versions.at_least(c.branch_name, from_here):
        yield Objection(
            f"{c.about['name']} packages driver branch {c.branch_name} with open modules only",
            unsure=c.driver_from != "distro",
        )
