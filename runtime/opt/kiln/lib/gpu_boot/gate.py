"""kiln-gpu-gate: whether this node may join its cluster. Runs before kubelet, ecs and slurmd.

  kiln-gpu-gate   exit status 0 when every GPU of the machine is there and cut as configured, else 1

It asks: the decision of kiln-gpu-boot, the kernel module, nvidia-smi -L against the PCI bus, the
fabric of each GPU where there are NVSwitches (which may take minutes), and the result of gpu-mig.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from gpu_boot import act
from gpu_common.nvidia_smi import NvidiaSmiError, run

MIG_RESULT = "/run/gpu-mig/result.json"
MIG_UNIT = "/etc/systemd/system/kiln-mig.service"
MODULE = "/sys/module/nvidia"
CONTAINER = "/run/systemd/container"
TIMEOUT_S = 60
FABRIC_WAIT_S = 300
FABRIC_MANAGER = "nvidia-fabricmanager.service"


class ClosedError(Exception):
    """Reason why this node must not join its cluster."""


def main(arguments: list[str]) -> int:
    """Return the exit status."""
    if arguments:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 0 if arguments[0] in ("--help", "-h") else 2
    try:
        check()
    except (ClosedError, NvidiaSmiError, OSError) as error:
        print(f"<3>this node must not join its cluster: {error}")
        return 1
    return 0


def check(ask: Callable[..., str] = run) -> None:
    """Raise ClosedError or NvidiaSmiError unless the node may join."""
    decision = _json(os.path.join(act.FLAGS, "decision.json"))
    if not decision:
        raise ClosedError("kiln-gpu-boot left no decision; see journalctl -u kiln-gpu-boot")
    if not decision["gpus"]:
        return
    # A container, as in AMI Kiln's lab, has the modules of its host.
    if not os.path.isdir(MODULE) and not os.path.exists(CONTAINER):
        raise ClosedError("the nvidia kernel module is not loaded")
    listed = [line for line in ask(["-L"], TIMEOUT_S).splitlines() if line.startswith("GPU ")]
    if len(listed) != len(decision["gpus"]):
        raise ClosedError(
            "{} GPUs are on the PCI bus, nvidia-smi lists {}".format(
                len(decision["gpus"]), len(listed)
            )
        )
    if decision["apply"]["nvswitch"]:
        _require_fabric(ask)
    _require_mig()


def _require_fabric(ask: Callable[..., str]) -> None:
    """Registration may take minutes, so what is not ready is asked again until the time is up."""
    end = time.monotonic() + FABRIC_WAIT_S
    problem = _fabric_problem(ask)
    while problem and time.monotonic() < end:
        time.sleep(5)
        problem = _fabric_problem(ask)
    if problem:
        raise ClosedError(f"{problem}; see journalctl -u nvidia-fabricmanager")


def _fabric_problem(ask: Callable[..., str]) -> str:
    query = ["--query-gpu=fabric.state,fabric.status", "--format=csv,noheader"]
    try:
        states = [s for s in ask(query, TIMEOUT_S).splitlines() if not s.startswith("WARNING:")]
    except NvidiaSmiError as error:
        if "is not a valid field" not in str(error):  # drivers before R525
            raise
        states = []
    registered = [s for s in states if s.replace("[N/A]", "N/A") != "N/A, N/A"]
    bad = [state for state in registered if state != "Completed, Success"]
    if bad:
        return f"the NVLink fabric of {len(bad)} GPUs is not ready: {bad[0]}"
    # GPUs before Hopper do not register: there only the service says that its work is done.
    if not registered and not _is_active(FABRIC_MANAGER):
        return f"{FABRIC_MANAGER} is not running"
    return ""


def _is_active(unit: str) -> bool:
    return subprocess.call(["systemctl", "is-active", "--quiet", unit]) == 0


def _require_mig() -> None:
    if not os.path.exists(MIG_UNIT):
        return
    result = _json(MIG_RESULT)
    state = result.get("state")
    if state in ("ok", "nothing"):
        return
    if state == "reboot" or result.get("block_join", True):
        why = result.get("message") or "gpu-mig left no result"
        raise ClosedError(
            f"the MIG layout is not as configured: {why}; see systemctl status kiln-mig"
        )


def _json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as stream:
            data = json.load(stream)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
