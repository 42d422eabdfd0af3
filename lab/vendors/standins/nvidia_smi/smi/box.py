"""The machine that the stand-in runs on: files, driver, instance type, injected faults."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

ROOT = os.environ.get("KILN_LAB_ROOT", "")
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
RUN = ROOT + "/run/kiln-lab/nvidia-smi"
DRIVER = ROOT + "/var/lib/kiln-lab/driver.json"
INSTANCE = ROOT + "/etc/kiln-lab/instance.json"
# Injected faults: set from outside the guest, or else written inside it, where /etc/kiln-lab is
# read-only.
FAULTS = ROOT + "/etc/kiln-lab/nvidia-smi-faults.json"
OWN_FAULTS = ROOT + "/var/lib/kiln-lab/nvidia-smi-faults.json"
JOURNAL = ROOT + "/run/kiln-lab/nvidia-smi.log"


def read_json(path: str) -> Any:
    """The content of a JSON file, or None when it is missing or incomplete."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.loads(file.read())
    except (OSError, ValueError):
        return None


def write_json(path: str, value: Any) -> None:
    """Replace the file atomically."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = f"{path}.{os.getpid()}"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(json.dumps(value))
    os.replace(partial, path)


def data(name: str) -> Any:
    """The content of a data file beside the program."""
    with open(os.path.join(DATA, name + ".json"), encoding="utf-8") as file:
        return json.loads(file.read())


def driver() -> dict[str, Any] | None:
    """The installed driver: version, branch (int), cuda, kernel_module; None without one."""
    recorded = read_json(DRIVER)
    if not isinstance(recorded, dict) or "version" not in recorded:
        return None
    version = str(recorded["version"])
    return {
        "version": version,
        "branch": int(version.split(".", 1)[0]),
        "nvml": ".".join(version.split(".")[:2]),
        "cuda": str(recorded.get("cuda", "N/A")),
        "kernel_module": str(recorded.get("kernel_module", "proprietary")),
        "loaded": bool(recorded.get("loaded", True)),
    }


def covers(spans: list[list[int]], version: int) -> bool:
    """Return True if this driver (`Lab.version`) is in one of the ranges. No range is every
    driver."""
    return not spans or any(low <= version <= high for low, high in spans)


def machine() -> dict[str, str]:
    """instance_type and instance_id of this guest, and the number of its host, from the lab."""
    instance = read_json(INSTANCE) or {}
    return {
        "instance_type": str(instance.get("instance_type", "")),
        "instance_id": str(instance.get("instance_id", "i-lab")),
        "host": str(instance.get("host", "1")),
    }


def faults() -> dict[str, Any]:
    """The injected faults, {} when there are none; see lab/vendors/standins/nvidia-smi.md.

    The added "stamp" changes with the file.
    """
    for path in (FAULTS, OWN_FAULTS):
        rules = read_json(path)
        if isinstance(rules, dict):
            return dict(rules, stamp=os.stat(path).st_mtime_ns)
    return {}


def alive(name: str) -> bool:
    """Return True if the stand-in daemon of that name is running, by its pid file."""
    pid = read_json(f"{ROOT}/run/kiln-lab/{name}.pid.json")
    return isinstance(pid, int) and os.path.exists(f"/proc/{pid}")


# Programs that hold a device open but run no work on it: they prevent neither a MIG change on
# Hopper nor instances. Which of them prevent a reset is data (reset_clients); a fault can turn it.
WATCHERS = ("nvidia-persistenced", "nv-fabricmanager", "nv-hostengine", "dcgm", "amazon-cloudwatch")


def clients(index: int) -> list[dict[str, Any]]:
    """The processes that hold /dev/nvidia<index> open, and those that a fault file adds.

    pid, name, compute (runs work on it), blocks (prevents a reset of Ampere).
    """
    processes = list(holders().get(f"{ROOT}/dev/nvidia{index}", ()))
    for extra in faults().get("busy", ()):
        if extra.get("gpu", "all") in ("all", index):
            processes.append({"pid": extra.get("pid", 4242), "name": extra.get("name", "python3")})
    if not processes:
        return processes
    blocking = dict(data("reset_clients"), **faults().get("blocks_reset", {}))
    for process in processes:
        name = process["name"].rsplit("/", 1)[-1]
        process["compute"] = not name.startswith(WATCHERS)
        process["blocks"] = blocking.get(name, True)
    return processes


# The result of `holders`, once it is known.
_holders: list[dict[str, list[dict[str, Any]]]] = []


def look_again() -> None:
    """Make the next call of `holders` read /proc again."""
    _holders.clear()


def holders() -> dict[str, list[dict[str, Any]]]:
    """Device file → the processes that hold it open, from /proc/*/fd as on a real machine.

    /proc is read once per command, for any number of GPUs.
    """
    if not _holders:
        by_device: dict[str, list[dict[str, Any]]] = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for device in set(_open_files(pid)):
                if device.startswith(ROOT + "/dev/nvidia"):
                    process = {"pid": int(pid), "name": _program(pid)}
                    by_device.setdefault(device, []).append(process)
        _holders.append(by_device)
    return _holders[0]


def _open_files(pid: str) -> list[str]:
    targets = []
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                targets.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except OSError:
                continue  # closed in the meantime
    except OSError:
        pass  # ended in the meantime, or another user's
    return targets


def _program(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        words = [""]  # ended in the meantime
    if "python" in words[0].rsplit("/", 1)[-1]:
        # A stand-in daemon is a Python script: its name is the first word that is not an option.
        words = [word for word in words[1:] if word and not word.startswith("-")] or words
    return words[0]
