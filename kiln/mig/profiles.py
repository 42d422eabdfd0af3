"""The MIG profiles of a GPU, and of an instance type's GPUs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from kiln import facts
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.runtime_import import runtime_module
from kiln.mig import export

if TYPE_CHECKING:
    from gpu_mig.facts import GpuType

_facts = runtime_module("gpu_mig.facts")
_profile = runtime_module("gpu_mig.profile")


class NoMigError(KilnError):
    """A GPU that does not support MIG. Exit status 2."""


@cache
def gpu_types() -> dict[str, GpuType]:
    """Every MIG-capable GPU by name (`gpu_mig.facts.GpuType`): kiln/facts/knowledge/mig.yaml."""
    data = export.image_profiles()
    return {g["gpu"]: _facts.gpu_type(g, data["mode_change"]) for g in data["gpus"]}


def gpu_type(name: str) -> GpuType:
    """The GPU that a person means: `H100-80GB`, `h100 80gb`, `NVIDIA A30`, `0x20B010DE`, `B200`.

    Raises NoMigError for a GPU without MIG, KilnError for an unknown GPU and for an ambiguous name
    (`A100` has 40 or 80 GB).
    """
    key = _squeeze(name)
    types = gpu_types()
    for gpu in types.values():
        if key in {
            _squeeze(gpu.name),
            _squeeze(gpu.product),
            *map(_squeeze, gpu.pci_device_ids),
        }:
            return gpu
    without = {_squeeze(n): n for n in facts.table("mig")["not_mig"]}
    if key in without:
        raise NoMigError(f"no MIG on this GPU: {without[key]} cannot be sliced")
    fitting = [gpu for gpu in types.values() if key and _squeeze(gpu.name).startswith(key)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(gpu.name for gpu in fitting)
        raise KilnError(f"{name!r} matches more than one GPU", hint=f"name one of: {names}")
    raise KilnError(f"unknown GPU {name!r}", hint=did_you_mean(name, [*types, *without.values()]))


def _squeeze(name: str) -> str:
    text = "".join(c for c in name.lower() if c.isalnum())
    return text.removeprefix("nvidia")


def gpus_on_instance(instance_type: str) -> tuple[facts.InstanceType, GpuType]:
    """The instance type and its GpuType. Raises NoMigError if its GPUs do not support MIG."""
    machine = facts.instance(instance_type)
    if not machine.mig:
        able = ", ".join(t.type for t in facts.instances().values() if t.mig)
        raise NoMigError(
            f"no MIG on this GPU: {instance_type} has {machine.ec2_name}",
            hint=f"types with MIG: {able}",
        )
    return machine, gpu_types()[machine.gpu]


def chosen(gpu: str | None, instance_type: str | None) -> tuple[int, GpuType]:
    """(number of GPUs, GpuType) of a GPU or instance type. Raises KilnError unless one is given."""
    if bool(gpu) == bool(instance_type):
        raise KilnError(
            "give either a GPU or an instance type",
            hint="--gpu H100-80GB, or --instance-type p5.48xlarge",
        )
    if gpu:
        return 1, gpu_type(gpu)
    machine, kind = gpus_on_instance(str(instance_type))
    return machine.gpu_count, kind


def profiles_for(instance_type: str) -> dict[str, Any]:
    """The profiles of an instance type's GPUs, as `nvidia-smi mig -lgip` lists them.

    Memory is in GiB; `per_instance` counts over all GPUs. `unsure` names the fields of a profile
    that no public listing confirms. Raises KilnError for a type without MIG.
    """
    machine, gpu = gpus_on_instance(instance_type)
    rows = [
        {
            "profile": p.name,
            "id": p.id,
            "per_gpu": p.max,
            "per_instance": p.max * machine.gpu_count,
            "memory_gib": p.gib,
            "sm": p.sm,
            "compute_slices": p.compute,
            "memory_slices": p.memory,
            "starts": list(p.starts),
            "engines": dict(zip(_facts.ENGINES, p.engines, strict=True)),
            "unsure": list(p.unsure),
        }
        for p in sorted(gpu.profiles.values(), key=lambda p: _profile.by_size(p.name), reverse=True)
    ]
    return {
        "instance_type": instance_type,
        "gpu": gpu.name,
        "product": gpu.product,
        "gpus": machine.gpu_count,
        "architecture": gpu.arch,
        "mode_change_needs_reset": gpu.reset,
        "compute_slices": gpu.compute_slices,
        "memory_slices": gpu.memory_slices,
        "profiles": rows,
    }


def profiles_text(table: dict[str, Any]) -> str:
    """`profiles_for` as a table for the terminal; `?` is an unpublished fact."""
    head = ("profile", "id", "per GPU", "per instance", "memory GiB", "SMs", "starts:slices")
    rows = [
        (
            p["profile"] + ("*" if p["unsure"] else ""),
            _or_unknown(p["id"]),
            str(p["per_gpu"]),
            str(p["per_instance"]),
            _or_unknown(p["memory_gib"]),
            _or_unknown(p["sm"]),
            "{" + ",".join(map(str, p["starts"])) + "}:" + str(p["memory_slices"]),
        )
        for p in table["profiles"]
    ]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [f"{table['instance_type']}: {table['gpus']} × {table['product']}"]
    for row in [head, *rows]:
        cells = [
            c.ljust(w) if i in (0, 6) else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    if any(p["unsure"] for p in table["profiles"]):
        lines.append("  * partly unconfirmed: see `unsure` in kiln/facts/knowledge/mig.yaml")
    return "\n".join(lines)


def _or_unknown(value: object) -> str:
    return "?" if value is None else str(value)
