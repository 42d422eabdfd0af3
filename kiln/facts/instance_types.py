"""EC2's instance types with NVIDIA GPUs (`kiln/facts/knowledge/instances.yaml`), and what
`kiln-gpu-boot` ships of them: which PCI device needs which kernel module and services."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.paths import RUNTIME
from kiln.facts.tables import table

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
    mig: bool
    open_modules: str
    prefers: str
    module_options: tuple[str, ...]
    arch: str
    vcpus: int
    memory_mib: int
    network_cards: int
    efa_cards: tuple[int, ...]
    source: str
    application_clocks: tuple[int, int] | None = None
    auto_boost: bool = False
    nvswitch: bool = False
    nvlsm: bool = False
    imex: bool = False
    grid_driver: bool = False
    fractional: bool = False
    offered: bool = True
    confirmed: bool = True
    unsure: tuple[str, ...] = ()

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
        """True if it has an EFA interface."""
        return bool(self.efa_cards)

    @property
    def efa_published(self) -> bool:
        """True if somebody has published which of its network cards have EFA."""
        return self.confirmed and not {"efa", "network_cards"} & {*self.unsure}


# What an instance type has of its GPU, by the same name.
_OF_GPU = (
    *("ec2_name", "product", "compute_capability", "pci_device_ids", "mig", "open_modules"),
    *("application_clocks", "auto_boost"),
)


@cache
def instances() -> dict[str, InstanceType]:
    """All GPU instance types, by name, in the order of the file."""
    data = table("instances")
    return {
        entry["type"]: _instance_type(entry, data["gpus"][entry["gpu"]], data["default_source"])
        for entry in data["types"]
    }


def _instance_type(entry: dict[str, Any], gpu: dict[str, Any], source: str) -> InstanceType:
    cards, preference = entry["network_cards"], gpu.get("prefers", {})
    only = {"required": "open", "unsupported": "proprietary"}.get(gpu["open_modules"])
    known = InstanceType.__dataclass_fields__
    values = {
        "gpu_count": entry["count"],
        "gpu_arch": gpu["arch"],
        "gpu_memory_mib": gpu["memory_mib"],
        "efa_cards": list(range(cards - entry["efa"], cards)),
        "prefers": only or preference.get("module", "open"),
        "module_options": preference.get("options", []),
        "source": source,
        **{name: gpu[name] for name in _OF_GPU if name in gpu},
        **{name: value for name, value in entry.items() if name in known},
    }
    fixed: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return InstanceType(**fixed)


def nvswitches() -> dict[str, tuple[str, int]]:
    """GPU architecture → (PCI device id, count per baseboard) of its NVSwitches, for the
    generations whose NVSwitches are PCI devices."""
    return {
        arch: (entry["pci_device_id"], entry["count"])
        for arch, entry in table("instances")["nvswitches"].items()
    }


def instance(name: str) -> InstanceType:
    """The GPU instance type of that name; for an unknown one the error names the nearest."""
    types = instances()
    if name not in types:
        family = name.lower().split(".", maxsplit=1)[0]
        sizes = [kind.type for kind in types.values() if kind.family == family]
        raise KilnError(
            f"{name} is not a GPU instance type that AMI Kiln knows",
            hint=did_you_mean(name, sizes or {kind.family for kind in types.values()}),
        )
    return types[name]


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
