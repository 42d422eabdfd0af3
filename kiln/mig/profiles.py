"""The MIG profiles of a GPU and of an instance type, and `profiles.json`, which the AMI uses."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from kiln import facts
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.paths import RUNTIME, runtime_module

if TYPE_CHECKING:
    from gpu_mig.facts import GpuType

_facts = runtime_module("gpu_mig.facts")
_profile = runtime_module("gpu_mig.profile")

PROFILES_JSON = RUNTIME / "opt" / "kiln" / "lib" / "gpu_mig" / "profiles.json"


class NoMigError(KilnError):
    """A GPU that does not support MIG. Exit status 2."""


@cache
def gpu_types() -> dict[str, GpuType]:
    """Every MIG-capable GPU by name (`gpu_mig.facts.GpuType`): kiln/facts/knowledge/mig.yaml."""
    data = image_profiles()
    return {g["gpu"]: _facts.gpu_type(g, data["mode_change"]) for g in data["gpus"]}


def gpu_type(name: str) -> GpuType:
    """The GPU that a person means: `H100-80GB`, `h100 80gb`, `NVIDIA A30`, `0x20B010DE`, `B200`.

    `A100` is ambiguous: it has 40 or 80 GB.
    """
    key = _squeeze(name)
    types = gpu_types()
    for gpu in types.values():
        if key in map(_squeeze, (gpu.name, gpu.product, *gpu.pci_device_ids)):
            return gpu
    without = {_squeeze(n): n for n in facts.table("mig")["not_mig"]}
    if key in without:
        raise NoMigError(f"no MIG on this GPU: {without[key]} cannot be sliced")
    found = [gpu for gpu in types.values() if key and _squeeze(gpu.name).startswith(key)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(gpu.name for gpu in found)
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
    """(number of GPUs, GpuType) of a GPU or instance type, of which one must be given."""
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
    that no public listing confirms.
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


def profiles_rows(answer: dict[str, Any]) -> list[tuple[str, ...]]:
    """`profiles_for` as rows of a table; `?` is an unpublished fact, `*` an unconfirmed profile."""
    rows: list[tuple[str, ...]] = [
        ("profile", "id", "per GPU", "per instance", "memory GiB", "SMs", "starts:slices")
    ]
    for p in answer["profiles"]:
        numbers = (p["id"], p["per_gpu"], p["per_instance"], p["memory_gib"], p["sm"])
        known = ("?" if number is None else str(number) for number in numbers)
        starts = ",".join(map(str, p["starts"]))
        name = p["profile"] + ("*" if p["unsure"] else "")
        rows.append((name, *known, f"{{{starts}}}:{p['memory_slices']}"))
    return rows


def image_profiles() -> dict[str, Any]:
    """The content of profiles.json: the GPUs of mig.yaml, and the PCI ids that cannot do MIG."""
    mig = facts.table("mig")
    gpus = facts.table("instances")["gpus"].values()
    return {
        "schema": "kiln/mig-profiles v1",
        "made_from": "kiln/facts/knowledge/mig.yaml, instances.yaml",
        "as_of": mig["as_of"],
        "mode_change": mig["mode_change"],
        "compute_instance_profiles": mig["compute_instance_profiles"],
        "compute_instance_sizes": mig["compute_instance_sizes"],
        "without_mig_pci": sorted({i for g in gpus if not g["mig"] for i in g["pci_device_ids"]}),
        "gpus": [
            {**gpu, "profiles": [_numbers(p) for p in gpu["profiles"]]} for gpu in mig["gpus"]
        ],
    }


def _numbers(profile: dict[str, Any]) -> dict[str, Any]:
    """`gib` as a number: the loader keeps decimals as text, because versions look like them."""
    gib = profile["gib"]
    return {**profile, "gib": None if gib is None else float(gib)}


def image_profiles_text() -> str:
    """The content of profiles.json: one profile per line, so that a change gives a short diff."""
    data = image_profiles()
    gpus = data.pop("gpus")
    lines = [f" {json.dumps(k)}: {json.dumps(v)}," for k, v in data.items()]
    lines.append(' "gpus": [')
    for i, gpu in enumerate(gpus):
        rows = gpu.pop("profiles")
        head = json.dumps(gpu)[1:-1]
        lines.append(f'  {{{head}, "profiles": [')
        lines += [f"   {json.dumps(p)}{',' if p is not rows[-1] else ''}" for p in rows]
        lines.append("  ]}" + ("," if i < len(gpus) - 1 else ""))
    return "{\n" + "\n".join(lines) + "\n ]\n}\n"
