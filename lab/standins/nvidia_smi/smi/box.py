"""The machine the stand-in runs on: files, driver, instance type, injected faults."""

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
# Injected faults: told from outside the guest, or else written inside it (/etc/kiln-lab is
# read-only there).
FAULTS = ROOT + "/etc/kiln-lab/nvidia-smi-faults.json"
OWN_FAULTS = ROOT + "/var/lib/kiln-lab/nvidia-smi-faults.json"
JOURNAL = ROOT + "/run/kiln-lab/nvidia-smi.log"
IMDS = os.environ.get("KILN_LAB_IMDS", "169.254.169.254:80")


def read_json(path: str) -> Any:
    """What the JSON file holds, or None where there is none (or half of one)."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.loads(file.read())
    except (OSError, ValueError):
        return None


def write_json(path: str, value: Any) -> None:
    """Replace the file whole, so that a reader never sees half of it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = f"{path}.{os.getpid()}"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(json.dumps(value))
    os.replace(partial, path)


def data(name: str) -> Any:
    """One of the data files laid down beside the program."""
    with open(os.path.join(DATA, name + ".json"), encoding="utf-8") as file:
        return json.loads(file.read())


def driver() -> dict[str, Any] | None:
    """The installed driver: version, branch (int), cuda, kernel_module; None without one."""
    found = read_json(DRIVER)
    if not isinstance(found, dict) or "version" not in found:
        return None
    version = str(found["version"])
    return {
        "version": version,
        "branch": int(version.split(".", 1)[0]),
        "nvml": ".".join(version.split(".")[:2]),
        "cuda": str(found.get("cuda", "N/A")),
        "kernel_module": str(found.get("kernel_module", "proprietary")),
        "loaded": bool(found.get("loaded", True)),
    }


def machine() -> dict[str, str]:
    """instance_type and instance_id of this guest, from the lab's file or from IMDSv2.

    IMDS is asked once a boot; the answer is kept under /run.
    """
    named = read_json(INSTANCE)
    if isinstance(named, dict) and named.get("instance_type"):
        return {
            "instance_type": str(named["instance_type"]),
            "instance_id": str(named.get("instance_id", "i-lab")),
        }
    kept = read_json(RUN + "/machine.json")
    if isinstance(kept, dict):
        return kept
    token = _http("PUT", "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds: 60")
    header = f"X-aws-ec2-metadata-token: {token}"
    found = {
        key: _http("GET", f"/latest/meta-data/{key.replace('_', '-')}", header) if token else ""
        for key in ("instance_type", "instance_id")
    }
    if found["instance_type"]:
        try:
            write_json(RUN + "/machine.json", found)
        except OSError:
            pass  # not root: the next call asks again
    return found


def _http(method: str, path: str, header: str) -> str:
    # http.client would take longer to import than the request takes.
    import socket

    host, _, port = IMDS.partition(":")
    ask = f"{method} {path} HTTP/1.0\r\nHost: {host}\r\n{header}\r\nContent-Length: 0\r\n\r\n"
    try:
        with socket.create_connection((host, int(port)), timeout=2) as link:
            link.sendall(ask.encode())
            answer = b""
            while True:
                part = link.recv(65536)
                if not part:
                    break
                answer += part
    except OSError:
        return ""
    head, _, body = answer.partition(b"\r\n\r\n")
    return body.decode().strip() if b" 200 " in head.split(b"\r\n", 1)[0] else ""


def faults() -> dict[str, Any]:
    """The injected faults, {} where there are none; see docs/lab-nvidia-smi.md.

    "stamp" is added: it changes when the file does.
    """
    for path in (FAULTS, OWN_FAULTS):
        found = read_json(path)
        if isinstance(found, dict):
            return dict(found, stamp=os.stat(path).st_mtime_ns)
    return {}


def alive(name: str) -> bool:
    """Whether the stand-in daemon of that name runs (it keeps a pid file)."""
    pid = read_json(f"{ROOT}/run/kiln-lab/{name}.pid.json")
    return isinstance(pid, int) and os.path.exists(f"/proc/{pid}")


# Programs that hold a device open but run nothing on it: they stop a reset, not a MIG change on
# Hopper, and no instance.
WATCHERS = ("nvidia-persistenced", "nv-fabricmanager", "nv-hostengine", "dcgm", "amazon-cloudwatch")


def clients(index: int) -> list[dict[str, Any]]:
    """The processes that hold /dev/nvidia<index> open: pid, name, compute (runs work on it).

    A fault file may add some.
    """
    found = list(holders().get(f"{ROOT}/dev/nvidia{index}", ()))
    for extra in faults().get("busy", ()):
        if extra.get("gpu", "all") in ("all", index):
            found.append({"pid": extra.get("pid", 4242), "name": extra.get("name", "python3")})
    for one in found:
        one["compute"] = not one["name"].rsplit("/", 1)[-1].startswith(WATCHERS)
    return found


_looked: list[dict[str, list[dict[str, Any]]]] = []


def look_again() -> None:
    """The next question about processes is answered anew."""
    _looked.clear()


def holders() -> dict[str, list[dict[str, Any]]]:
    """Who holds which GPU's device file open, as on a real machine: through /proc/*/fd.

    One look a command, however many GPUs it asks about.
    """
    if not _looked:
        found: dict[str, list[dict[str, Any]]] = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for device in set(_open_files(pid)):
                if device.startswith(ROOT + "/dev/nvidia"):
                    one = {"pid": int(pid), "name": _program(pid)}
                    found.setdefault(device, []).append(one)
        _looked.append(found)
    return _looked[0]


def _open_files(pid: str) -> list[str]:
    found = []
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except OSError:
                continue  # closed meanwhile
    except OSError:
        pass  # ended meanwhile, or not ours to look at
    return found


def _program(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        words = [""]  # ended meanwhile
    if "python" in words[0].rsplit("/", 1)[-1]:
        # A stand-in daemon is a Python script: its name is the first word that is no option.
        words = [word for word in words[1:] if word and not word.startswith("-")] or words
    return words[0]
