"""A stand-in for nvidia-fabricmanager-start.sh: fabric manager's unit runs it from branch 570 on.

On a machine whose NVSwitches are managed over InfiniBand (NVL5+: B200, B300) it refuses to start
without the module ib_umad and without NVLSM, and starts NVLSM itself. Its messages are those of
https://github.com/spectrocloud/CanvOS/pull/700 and of NVIDIA's gpu-driver-container
(ubuntu22.04/nvidia-driver @06a208ca9747c82b1ba99b76ecdcf2469b0a0207), which calls it.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys

from . import box, gpus

STAND_IN = "AMI Kiln lab stand-in"
NVLSM = "/opt/nvidia/nvlsm/sbin/nvlsm"
NVLSM_CONFIG = "/usr/share/nvidia/nvlsm/nvlsm.conf"
NVLSM_PID = "/run/nvidia-fabricmanager/nvlsm.pid"
FABRIC_MANAGER = "/usr/bin/nv-fabricmanager"
FABRIC_CONFIG = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"


def start(words: list[str]) -> int:
    """nvidia-fabricmanager-start.sh --mode precheck|start [--fm-config-file FILE] …"""
    mode = _option(words, "mode")
    driver = box.driver()
    newer = driver is not None and any(gpu.nvlsm for gpu in gpus.load(driver).gpus)
    _say(f"Detected {'NVL5+' if newer else 'Pre-NVL5'} system")
    if newer and not _ib_umad():
        _say('Kernel module "ib_umad" has not been loaded, fabric manager cannot be started')
        _say('Please run "modprobe ib_umad" before starting fabric manager')
        return 1
    if mode == "precheck":
        return 0
    command = [box.ROOT + FABRIC_MANAGER, "-c", _option(words, "fm-config-file") or FABRIC_CONFIG]
    if newer:
        if not os.path.exists(box.ROOT + NVLSM):
            _say(f'"{NVLSM}" does not exist. Please install "Nvidia NVLink Subnet Manager" (nvlsm)')
            return 1
        if _running():
            _say("Perhaps another instance of OpenSM is already running")
            return 1
        _start_nvlsm()
    os.execv(command[0], command)  # noqa: S606 -- our own stand-in
    return 1


def _start_nvlsm() -> None:
    os.makedirs(os.path.dirname(box.ROOT + NVLSM_PID), exist_ok=True)
    child = subprocess.Popen(
        [box.ROOT + NVLSM, "-F", box.ROOT + NVLSM_CONFIG],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with open(box.ROOT + NVLSM_PID, "w", encoding="ascii") as file:
        file.write(f"{child.pid}\n")


def _running() -> bool:
    """Return True if an nvlsm is running, whoever started it. The kernel gives a script its file's
    name."""
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                if (box.ROOT + NVLSM).encode() in file.read().split(b"\0")[:3]:
                    return True
        except OSError:
            continue  # ended in the meantime
    return False


def _ib_umad() -> bool:
    """Would the module be loaded? A lab guest loads none: it must be asked for, and be there."""
    is_configured = any(
        "ib_umad" in _lines(path) for path in glob.glob(box.ROOT + "/etc/modules-load.d/*.conf")
    )
    pattern = box.ROOT + "/lib/modules/*/kernel/drivers/infiniband/core/ib_umad.ko*"
    return is_configured and bool(glob.glob(pattern))


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file]


def _option(words: list[str], name: str) -> str:
    return words[words.index(f"--{name}") + 1] if f"--{name}" in words[:-1] else ""


def _say(text: str) -> None:
    sys.stderr.write(f"{text} ({STAND_IN})\n")
    sys.stderr.flush()
