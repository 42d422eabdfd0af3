"""A stand-in for /sys/bus/pci: the NVIDIA devices of an instance type.

It is composed from the facts, not recorded: ids and counts are the type's, addresses are invented.
A guest makes its tree with the program `pci-tree` (lab/rootfs/basefiles), from the table that
`./invoke generate` writes beside it.
"""

from __future__ import annotations

import json
from pathlib import Path

from kiln.facts import instances, nvswitches
from lab.rootfs import distros

TABLE = distros.FILES / "common/usr/lib/kiln-lab-pci/pci.json"

_FRACTION = {"27b8": "1733"}


def devices(instance_type: str) -> list[dict[str, str]]:
    """The NVIDIA PCI functions of an instance type, as sysfs field → content.

    [] for a type without NVIDIA devices or an unknown type: the lab boots any type.
    """
    entry = instances().get(instance_type)
    if entry is None:
        return []
    gpu = entry.pci_device_ids[0]
    count = max(entry.gpu_count, 1)
    functions = [
        _fields("0x030200", gpu, _FRACTION.get(gpu, "0000") if entry.fractional else "0000")
        for _ in range(count)
    ]
    if entry.nvswitch and entry.gpu_arch in nvswitches():
        device, switches = nvswitches()[entry.gpu_arch]
        functions += [_fields("0x068000", device, "0000") for _ in range(switches)]
    return functions


def _fields(pci_class: str, device: str, subsystem: str) -> dict[str, str]:
    return {
        "vendor": "0x10de",
        "device": f"0x{device}",
        "class": pci_class,
        "subsystem_device": f"0x{subsystem}",
    }


def write(instance_type: str, sysfs: Path) -> None:
    """Write the tree below `sysfs`, a folder for KILN_SYSFS."""
    root = sysfs / "bus/pci/devices"
    root.mkdir(parents=True, exist_ok=True)
    for number, fields in enumerate(devices(instance_type)):
        folder = root / f"0000:{0x10 + number:02x}:00.0"
        folder.mkdir(exist_ok=True)
        for name, content in fields.items():
            (folder / name).write_text(content + "\n")


def table() -> str:
    """The devices of every instance type, as JSON."""
    lines = (f"{json.dumps(name)}: {json.dumps(devices(name))}" for name in instances())
    return "{\n" + ",\n".join(lines) + "\n}\n"
