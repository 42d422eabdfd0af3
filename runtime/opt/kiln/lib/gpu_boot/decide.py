"""PCI devices → what applies on this machine."""

import json
import os

from gpu_boot import pci

OPEN, PROPRIETARY, EITHER = "open", "proprietary", "either"


def known(path=None):
    """devices.json: {"gpus": {device id: {name, open_modules, prefers, options, needs, clocks,
    auto_boost}},
    "nvswitch": [device id]}."""
    path = path or os.path.join(os.path.dirname(os.path.abspath(__file__)), "devices.json")
    with open(path) as stream:
        return json.load(stream)


def decide(devices, facts):
    """What applies, as plain data.

    {"gpus": [{address, device, name}], "nvswitches": n,
     "module": "open"|"proprietary"|"either"|None,
     "prefers": "open"|"proprietary", which one where both are on the image,
     "options": [parameters of that module],
     "apply": {"gpu", "nvswitch", "nvlsm", "imex", "clocks": bool}, "why": [sentences]}

    A GPU that is not in `facts` is newer than this image: it gets the open module, the only one
    that new GPUs have.
    """
    gpus = pci.nvidia_gpus(devices)
    entries = [facts["gpus"][gpu.device] for gpu in gpus if gpu.device in facts["gpus"]]
    unknown = sorted({gpu.device for gpu in gpus if gpu.device not in facts["gpus"]})
    switches = [d for d in devices if d.vendor == pci.NVIDIA and d.device in facts["nvswitch"]]
    needs = {entry["needs"] for entry in entries}
    module, why = _module(entries, unknown)
    prefers, options = _preference(entries, module)
    if switches:
        why.append("%d NVSwitches: fabric manager applies" % len(switches))
    if "nvlsm" in needs:
        why.append("fourth-generation NVSwitch: fabric manager and NVLSM apply")
    if "imex" in needs:
        why.append("NVLink reaches beyond this host: IMEX applies")
    clocks = any(entry["clocks"] for entry in entries)
    if gpus and not clocks:
        why.append("nobody documents application clocks of this GPU: they stay as they are")
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
            # The newest NVSwitch is managed over InfiniBand and is no NVIDIA PCI device.
            "nvswitch": bool(switches) or "nvlsm" in needs,
            "nvlsm": "nvlsm" in needs,
            "imex": "imex" in needs,
            "clocks": clocks,
        },
        "why": why,
    }


def _module(entries, unknown):
    if not entries and not unknown:
        return None, ["no NVIDIA GPU on the PCI bus: nothing is loaded or started"]
    support = {entry["open_modules"] for entry in entries}
    if "required" in support:
        return OPEN, ["this GPU has open kernel modules only"]
    if unknown:
        return OPEN, ["unknown to this image, so the open module: GPU " + ", ".join(unknown)]
    if "unsupported" in support:
        return PROPRIETARY, ["this GPU is older than the open kernel modules"]
    return EITHER, ["both kernel modules serve this GPU"]


def _preference(entries, module):
    """(flavour, its parameters) that AWS takes where both serve; open unless all GPUs say else."""
    if module in (OPEN, PROPRIETARY):
        return module, []
    if entries and all(entry["prefers"] == PROPRIETARY for entry in entries):
        return PROPRIETARY, sorted({one for entry in entries for one in entry["options"]})
    return OPEN, []
