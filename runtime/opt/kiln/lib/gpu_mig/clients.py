"""The processes that use a GPU, and the services that may be stopped for a moment to free it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpu_common import nvidia_smi

from . import paths
from .smi import Smi

STOPPED = paths.RUN_DIR + "/stopped-services.json"
_TIMEOUT_S = 90
# As the kernel cuts its name: at 15 characters.
_FABRIC_MANAGER = "nv-fabricmanage"
# How `systemctl is-…` says no: 1, 3 for what is not active, 4 for a unit that does not exist.
_NO = (1, 3, 4)
_DEVICE = re.compile(r"^/dev/nvidia([0-9]+|ctl|-uvm|-modeset)$")


class Client(NamedTuple):
    """A process with a GPU device file open. `unit`: its systemd unit, "" when it has none."""

    pid: int
    name: str
    unit: str

    def __str__(self) -> str:
        unit = ", " + self.unit if self.unit else ""
        return f"{self.name} (pid {self.pid}{unit})"


def holders(smi: Smi) -> list[Client]:
    """Processes that use a GPU: from /proc, and the CUDA processes that nvidia-smi lists."""
    clients = {}
    for pid in _pids():
        if int(pid) != os.getpid() and _holds(paths.at(f"/proc/{pid}/fd")):
            clients[int(pid)] = _client(pid, paths.read(f"/proc/{pid}/comm").strip())
    rc, out = smi.run("--query-compute-apps=pid,process_name", "--format=csv,noheader")
    for line in out.splitlines() if rc == 0 else []:
        pid, _, name = (part.strip() for part in line.partition(","))
        if pid.isdecimal() and pid.isascii() and len(pid) < 20:
            clients.setdefault(int(pid), _client(pid, name))
    return sorted(clients.values())


def _pids() -> list[str]:
    proc = paths.at("/proc")
    return [name for name in os.listdir(proc) if name.isdigit()] if os.path.isdir(proc) else []


def _holds(fd_dir: str) -> bool:
    try:
        return any(
            _DEVICE.match(os.readlink(os.path.join(fd_dir, fd))) for fd in os.listdir(fd_dir)
        )
    except OSError:  # the process has ended, or we may not look at it
        return False


def _client(pid: str, name: str) -> Client:
    units = re.findall(r"/([^/\n]+\.service)", paths.read(f"/proc/{pid}/cgroup"))
    return Client(int(pid), name or "?", units[-1] if units else "")


def advice(smi: Smi) -> str:
    """Return advice about a busy GPU, with the names of its clients.

    Fabric manager is not named: it takes part in a reset and must keep running for it.
    """
    clients = holders(smi)
    names = ", ".join(str(c) for c in clients if not c.name.startswith(_FABRIC_MANAGER))
    if clients and not names:
        parts = ["only fabric manager has the GPU open, which must not prevent a reset: reboot"]
    else:
        names = names or "the processes that use the GPU"
        parts = [f"stop {names}, then run gpu-mig apply again"]
    if os.path.isdir(paths.at("/sys/module/nvidia_drm")):
        parts.append("nvidia_drm is loaded and also uses the GPU (modprobe -r nvidia_drm)")
    return (
        "; ".join(parts)
        + f". MIG_STOP_SERVICES in {paths.DEFAULTS} lists the services that gpu-mig may stop"
    )


def stop_listed(services: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Stops those of `services` that are active, remembers them, and returns them."""
    active = [s for s in services if unit_is("active", s)]
    if active:
        paths.write_json(STOPPED, {"services": sorted(set(_stopped()) | set(active))})
        say("stopping {} so that the GPU is free".format(", ".join(active)))
        _order("stop", *active)
    return active


def _stopped() -> list[str]:
    """The services that `stop_listed` remembers as stopped."""
    services = paths.read_json(STOPPED).get("services")
    return [s for s in services if isinstance(s, str)] if isinstance(services, list) else []


def is_persistenced(service: str) -> bool:
    """Return True if this service keeps the driver loaded."""
    return "persistenced" in service


def restart_persistenced(say: Callable[[str], None]) -> None:
    """Starts a stopped nvidia-persistenced: a driver that unloads loses its instances."""
    services = _stopped()
    keepers = [s for s in services if is_persistenced(s)]
    if keepers:
        say("starting {} again".format(", ".join(keepers)))
        _order("start", *keepers)
        paths.write_json(STOPPED, {"services": [s for s in services if s not in keepers]})


def start_again(say: Callable[[str], None]) -> None:
    """Starts the services that `stop_listed` stopped, also in a run that was killed. Does not wait.

    At boot some of them are ordered after our own unit: waiting for them would never end.
    """
    services = _stopped()
    if services:
        say("starting {} again".format(", ".join(services)))
        _order("start", "--no-block", *services)
    paths.remove(STOPPED)


def operator_in_charge() -> str:
    """The evidence that mig-manager of the GPU operator owns the layout; "" without any."""
    if unit_is("enabled", "nvidia-mig-manager.service"):
        return "nvidia-mig-manager.service is enabled"
    for pid in _pids():
        if paths.read(f"/proc/{pid}/comm").strip() == "nvidia-mig-mana":
            return f"nvidia-mig-manager runs (pid {pid})"
    return ""


def refresh_cdi(say: Callable[[str], None]) -> None:
    """Regenerates the CDI specification, by which container runtimes name MIG devices."""
    if unit_is("enabled", "nvidia-cdi-refresh.service"):
        say("refreshing CDI: nvidia-cdi-refresh.service")
        _order("restart", "--no-block", "nvidia-cdi-refresh.service")
        return
    for spec in ("/var/run/cdi/nvidia.yaml", "/etc/cdi/nvidia.yaml"):
        if os.path.exists(paths.at(spec)):
            say(f"refreshing CDI: {spec}")
            if _run(["nvidia-ctk", "cdi", "generate", "--output=" + paths.at(spec)]):
                say(f"warning: nvidia-ctk could not write {spec}")


def reboot() -> bool:
    """Asks systemd to reboot and returns at once; False if systemd refused."""
    return _systemctl("reboot", "--no-block") == 0


def unit_is(state: str, unit: str) -> bool:
    """Return True if a unit is active or enabled; False, and a warning, if systemctl fails."""
    status = _systemctl("is-" + state, "--quiet", unit)
    if status not in _NO and status != 0:
        _warn(f"`systemctl is-{state} {unit}` failed with status {status}")
    return status == 0


def _order(verb: str, *args: str) -> None:
    """Have systemd start or stop units. A failure is a warning: the GPUs matter more."""
    status = _systemctl(verb, *args)
    if status != 0:
        _warn("`systemctl {}` failed with status {}".format(" ".join((verb, *args)), status))


def _warn(message: str) -> None:
    print("gpu-mig: warning: " + message, file=sys.stderr, flush=True)


def _systemctl(*args: str) -> int:
    return _run(["systemctl", *args])


def _run(argv: list[str]) -> int:
    """The exit status, 127 when there is none: nvidia-ctk opens the GPUs and may hang as well."""
    try:
        return nvidia_smi.call(argv[1:], _TIMEOUT_S, argv[0])[0]
    except nvidia_smi.NvidiaSmiError:
        return 127
