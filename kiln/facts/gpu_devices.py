"""The facts that `kiln-gpu-boot` ships: which PCI device needs which kernel module and services.

`runtime/opt/kiln/lib/gpu_boot/devices.json` is made from `kiln/facts/knowledge/instances.yaml`:
`./invoke generate` writes it.
"""

from __future__ import annotations

import json

from kiln.base.paths import RUNTIME
from kiln.facts import InstanceType, instances, nvswitches

FILE = RUNTIME / "opt/kiln/lib/gpu_boot/devices.json"


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
                "needs": _needs(entry),
                "clocks": ",".join(map(str, entry.application_clocks or ())),
                "auto_boost": entry.auto_boost,
            }
    switches = [device for device, _ in nvswitches().values()]
    return {"gpus": dict(sorted(gpus.items())), "nvswitch": switches}


def _needs(entry: InstanceType) -> str:
    return "nvlsm" if entry.nvlsm else "imex" if entry.imex else ""


def gpu_devices_text() -> str:
    """The file's content."""
    return json.dumps(devices(), indent=1) + "\n"
