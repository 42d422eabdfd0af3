"""The run at boot: cheap when there is nothing to do, and a record for those who must not join."""

from __future__ import annotations

import os

from . import clients, paths
from .errors import world_failed

RESULT = paths.RUN_DIR + "/result.json"
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controller


def record(state, message, block_join):
    """Leaves `state` (started, ok, nothing, failed, reboot) for `gate`."""
    paths.write_json(RESULT, {"state": state, "message": message, "block_join": block_join})


def gate() -> None:
    """Raises MigError when this node must not join its cluster: run before kubelet, ecs, slurmd."""
    result = paths.read_json(RESULT)
    state = result.get("state", "")
    if state == "reboot" or (result.get("block_join") and state in ("started", "failed")):
        raise world_failed(
            "the MIG slices are not as configured ({}): {}".format(state, result.get("message")),
            "see `systemctl status aws-gpu-mig`; MIG_BLOCK_JOIN in {}.".format(paths.DEFAULTS),
        )


def no_mig_here(cannot) -> str:
    """Why no GPU of this machine can do MIG, from the PCI bus alone; "" when one may.

    Saves the second nvidia-smi needs on a machine whose GPUs cannot be sliced. `cannot`: PCI device
    ids known for that. An id not among them, or a bus that shows no NVIDIA GPU (a container), is
    left to nvidia-smi.
    """
    base = "/sys/bus/pci/devices"
    names = os.listdir(paths.at(base)) if os.path.isdir(paths.at(base)) else []
    seen = set()
    for where in ("{}/{}/".format(base, name) for name in names):
        if paths.read(where + "vendor").strip() != _NVIDIA:
            continue
        if paths.read(where + "class").strip()[:6] in _DISPLAY:
            seen.add(paths.read(where + "device").strip()[2:].lower())
    if not seen or not seen <= set(cannot):
        return ""
    return "no GPU of this machine can do MIG (PCI device {})".format(", ".join(sorted(seen)))


def stand_aside(settings) -> str:
    """Why this run leaves the layout to the GPU operator; "" when it is ours."""
    if settings.owner == "kiln":
        return ""
    if settings.owner == "operator":
        return "MIG_OWNER=operator"
    return clients.operator_in_charge()
