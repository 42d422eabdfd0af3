"""PCI devices → what this machine needs."""

from __future__ import annotations

import json
import os
from typing import Any

from gpu_common import pci

OPEN, PROPRIETARY, EITHER = "open", "proprietary", "either"


def device_facts(path: str | None = None) -> Any:
    """devices.json: {"gpus": {device id: {name, open_modules, prefers, options, needs, clocks,
    auto_boost}},
    "nvswitch": [device id]}."""
    path = path or os.path.join(os.path.dirname(os.path.abspath(__file__)), "devices.json")
    with open(path) as stream:
        return json.load(stream)


def decide(devices: list[pci.Device], facts: dict[str, Any]) -> dict[str, Any]:
    """Return this machine's needs, as plain data.

    {"gpus": [{address, device, name}], "nvswitches": n,
     "module": "open"|"proprietary"|"either"|None,
     "prefers": "open"|"proprietary", which kind where both are on the image,
     "options": [parameters of that module],
     "apply": {"gpu", "nvswitch", "nvlsm", "imex", "clocks": bool}, "why": [sentences]}

    A GPU that is not in `facts` is newer than this image. It gets the open module, the only kind
    that supports new GPUs.
    """
    gpus = pci.nvidia_gpus(devices)
    entries = [facts["gpus"][gpu.device] for gpu in gpus if gpu.device in facts["gpus"]]
    unknown = sorted({gpu.device for gpu in gpus if gpu.device not in facts["gpus"]})
    switches = [d for d in devices if d.vendor == pci.NVIDIA and d.device in facts["nvswitch"]]
    needs = {entry["needs"] for entry in entries}
    module, why = _module(entries, unknown)
    prefers, options = _preference(entries, module)
    if switches:
        why.append(f"{len(switches)} NVSwitches: fabric manager applies")
    if "nvlsm" in needs:
        why.append("fourth-generation NVSwitch: fabric manager and NVLSM apply")
    if "imex" in needs:
        why.append("NVLink reaches beyond this host: IMEX applies")
    clocks = any(entry["clocks"] for entry in entries)
    if gpus and not clocks:
        why.append("no application clocks are documented for this GPU: they are not changed")
    return {
        "gpus": [
            {
                "address": gpu.address,
                "device": gpu.device,
                "name": facts["gpus"].get(gpu.device, {}).get("name"),
            }
            for gpu in gpus
        ],
        "nvswitches": len(switches),
        "module": module,
        "prefers": prefers,
        "options": options,
        "apply": {
            "gpu": bool(gpus),
            # The newest NVSwitch is managed over InfiniBand and is not an NVIDIA PCI device.
            "nvswitch": bool(switches) or "nvlsm" in needs,
            "nvlsm": "nvlsm" in needs,
            "imex": "imex" in needs,
            "clocks": clocks,
        },
        "why": why,
    }


def _module(entries: list[dict[str, Any]], unknown: list[str]) -> tuple[str | None, list[str]]:
    if not entries and not unknown:
        return None, ["no NVIDIA GPU on the PCI bus: nothing is loaded or started"]
    support = {entry["open_modules"] for entry in entries}
    if "required" in support:
        return OPEN, ["only the open kernel modules support this GPU"]
    if unknown:
        return OPEN, ["unknown to this image, so the open module: GPU " + ", ".join(unknown)]
    if "unsupported" in support:
        return PROPRIETARY, ["this GPU is older than the open kernel modules"]
    return EITHER, ["both kinds of kernel module support this GPU"]


def _preference(entries: list[dict[str, Any]], module: str | None) -> tuple[str | None, list[str]]:
    """(kind, its parameters) that AWS uses if both support the GPU: open unless all GPUs differ."""
    if module in (OPEN, PROPRIETARY):
        return module, []
    if entries and all(entry["prefers"] == PROPRIETARY for entry in entries):
        return PROPRIETARY, sorted({option for entry in entries for option in entry["options"]})
    return OPEN, []
