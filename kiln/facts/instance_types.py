"""EC2's instance types with NVIDIA GPUs (`kiln/facts/knowledge/instances.yaml`), and what
`kiln-gpu-boot` ships of them: which PCI device needs which kernel module and services."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from kiln.base.errors import KilnError, nearest
from kiln.base.paths import RUNTIME
from kiln.facts.tables import confirmed, table

# `./invoke generate` writes it.
DEVICES_FILE = RUNTIME / "opt/kiln/lib/gpu_boot/devices.json"


@dataclass(frozen=True)
class InstanceType:
    """An EC2 instance type with NVIDIA GPUs.

    `gpu` is the key in instances.yaml (and mig.yaml), `product` the name that `nvidia-smi` shows.
    `gpu_count` counts whole GPUs: 0 on fractional types (g6f, gr6f). `gpu_arch` is the GPU's
    architecture, `arch` the processor's. `efa_cards` are the indexes of the network cards that get
    an interface for EFA alone. `nvswitch` means that CUDA needs fabric manager, `nvlsm`
    that fabric manager needs NVLSM. `open_modules` is supported, required or unsupported; `prefers`
    is the kernel module to load if both are on the image, `module_options` its parameters.
    `application_clocks` are the highest memory and graphics clocks in MHz; with `auto_boost` the
    GPU varies its clocks unless that is turned off. `unsure` names fields that no public source
    confirms.
    """

    type: str
    gpu: str
    ec2_name: str
    product: str
    gpu_count: int
    gpu_memory_mib: int
    gpu_arch: str
    compute_capability: str
    pci_device_ids: tuple[str, ...]
    arch: str
    vcpus: int
    memory_mib: int
    network_cards: int
    efa_cards: tuple[int, ...]
    nvswitch: bool
    nvlsm: bool
    imex: bool
    mig: bool
    open_modules: str
    prefers: str
    module_options: tuple[str, ...]
    application_clocks: tuple[int, int] | None
    auto_boost: bool
    grid_driver: bool
    fractional: bool
    offered: bool
    confirmed: bool
    unsure: tuple[str, ...]
    source: str

    @property
    def family(self) -> str:
        """The part before the dot: p5.48xlarge → p5."""
        return self.type.split(".", maxsplit=1)[0]

    @property
    def efa_interfaces(self) -> int:
        """The number of its EFA interfaces."""
        return len(self.efa_cards)

    @property
    def efa(self) -> bool:
        """Does it have an EFA interface?"""
        return bool(self.efa_cards)

    @property
    def efa_published(self) -> bool:
        """Has anybody published which of its network cards have EFA?"""
        return self.confirmed and not {"efa", "network_cards"} & {*self.unsure}


@cache
def instances() -> dict[str, InstanceType]:
    """All GPU instance types, by name, in the order of the file."""
    data = table("instances")
    return {
        entry["type"]: _instance_type(entry, data["gpus"][entry["gpu"]], data["default_source"])
        for entry in data["types"]
    }


def _instance_type(entry: dict[str, Any], gpu: dict[str, Any], source: str) -> InstanceType:
    clocks, cards = gpu.get("application_clocks"), entry["network_cards"]
    return InstanceType(
        type=entry["type"],
        gpu=entry["gpu"],
        ec2_name=gpu["ec2_name"],
        product=gpu["product"],
        gpu_count=entry["count"],
        gpu_memory_mib=entry.get("gpu_memory_mib", gpu["memory_mib"]),
        gpu_arch=gpu["arch"],
        compute_capability=gpu["compute_capability"],
        pci_device_ids=tuple(gpu["pci_device_ids"]),
        arch=entry["arch"],
        vcpus=entry["vcpus"],
        memory_mib=entry["memory_mib"],
        network_cards=cards,
        efa_cards=tuple(entry.get("efa_cards", range(cards - entry["efa"], cards))),
        nvswitch=entry.get("nvswitch", False),
        nvlsm=entry.get("nvlsm", False),
        imex=entry.get("imex", False),
        mig=gpu["mig"],
        open_modules=gpu["open_modules"],
        prefers=_preferred(gpu),
        module_options=tuple(gpu.get("prefers", {}).get("options", ())),
        application_clocks=(clocks[0], clocks[1]) if clocks else None,
        auto_boost=gpu.get("auto_boost", False),
        grid_driver=entry.get("grid_driver", False),
        fractional=entry.get("fractional", False),
        offered=entry.get("offered", True),
        confirmed=confirmed(entry),
        unsure=tuple(entry.get("unsure", ())),
        source=entry.get("source", source),
    )


def nvswitches() -> dict[str, tuple[str, int]]:
    """GPU architecture → (PCI device id, count per baseboard) of its NVSwitches, for the
    generations whose NVSwitches are PCI devices."""
    return {
        arch: (entry["pci_device_id"], entry["count"])
        for arch, entry in table("instances")["nvswitches"].items()
    }


def _preferred(gpu: dict[str, Any]) -> str:
    only = {"required": "open", "unsupported": "proprietary"}.get(gpu["open_modules"])
    return only or str(gpu.get("prefers", {}).get("module", "open"))


def instance(name: str) -> InstanceType:
    """The GPU instance type of that name; for an unknown one the error names the nearest."""
    types = instances()
    if name in types:
        return types[name]
    family = name.split(".", maxsplit=1)[0]
    sizes = [other for other in types if types[other].family == family]
    best = nearest(name, sizes or types)
    hint = f"did you mean {best}?" if best else "all are in kiln/facts/knowledge/instances.yaml"
    if sizes:
        hint = f"{family} has: {', '.join(sizes)}"
    raise KilnError(f"{name} is not a GPU instance type that AMI Kiln knows", hint=hint)


def devices() -> dict[str, object]:
    """{"gpus": {device id: {"name", "open_modules", "prefers", "options", "needs", "clocks",
    "auto_boost"}}, "nvswitch": [device id]}.

    `prefers` is the kernel module to load if both were baked, `options` its parameters. `needs` is
    what this GPU needs on any instance type: "nvlsm" (with fabric manager), "imex" or "". `clocks`
    are its highest application clocks, "memory,graphics" in MHz, "" if unknown.
    """
    gpus: dict[str, dict[str, object]] = {}
    for entry in instances().values():
        for device in entry.pci_device_ids:
            gpus[device] = {
                "name": entry.product,
                "open_modules": entry.open_modules,
                "prefers": entry.prefers,
                "options": list(entry.module_options),
                "needs": "nvlsm" if entry.nvlsm else "imex" if entry.imex else "",
                "clocks": ",".join(map(str, entry.application_clocks or ())),
                "auto_boost": entry.auto_boost,
            }
    switches = [device for device, _ in nvswitches().values()]
    return {"gpus": dict(sorted(gpus.items())), "nvswitch": switches}


def gpu_devices_text() -> str:
    """The content of DEVICES_FILE."""
    return json.dumps(devices(), indent=1) + "\n"
