"""The run at boot: cheap when there is nothing to do, and its result for the cluster gate."""

from __future__ import annotations

import os
from collections.abc import Iterable

from . import clients, paths
from .settings import Settings

RESULT = paths.RUN_DIR + "/result.json"
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controller


def record(state: str, message: str, block_join: bool) -> None:
    """Records `state` (started, ok, nothing, failed, reboot) for kiln-gpu-gate."""
    paths.write_json(RESULT, {"state": state, "message": message, "block_join": block_join})


def no_mig_here(without_mig: Iterable[str]) -> str:
    """The reason why no GPU of this machine supports MIG, from the PCI bus; "" if a GPU may.

    Saves the second that nvidia-smi takes on a machine whose GPUs do not support MIG.
    `without_mig`: PCI device ids of such GPUs. If an id is not among them, or the bus shows no
    NVIDIA GPU (in a container), nvidia-smi must be asked.
    """
    base = "/sys/bus/pci/devices"
    names = os.listdir(paths.at(base)) if os.path.isdir(paths.at(base)) else []
    ids = set()
    for where in (f"{base}/{name}/" for name in names):
        if paths.read(where + "vendor").strip() != _NVIDIA:
            continue
        if paths.read(where + "class").strip()[:6] in _DISPLAY:
            ids.add(paths.read(where + "device").strip()[2:].lower())
    if not ids or not ids <= set(without_mig):
        return ""
    return "no GPU of this machine supports MIG (PCI device {})".format(", ".join(sorted(ids)))


def stand_aside(settings: Settings) -> str:
    """The reason to leave the layout to the GPU operator; "" when gpu-mig is in charge."""
    if settings.owner == "kiln":
        return ""
    if settings.owner == "operator":
        return "MIG_OWNER=operator"
    return clients.operator_in_charge()
