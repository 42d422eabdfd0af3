"""Who holds a GPU, and the services that may be stopped for a moment to let go of it."""

from __future__ import annotations

import os
import re
import subprocess
from typing import List, NamedTuple

from . import paths

STOPPED = paths.RUN_DIR + "/stopped-services.json"
_DEVICE = re.compile(r"^/dev/nvidia(\d+|ctl|-uvm|-modeset)$")


class Client(NamedTuple):
    """A process with a GPU device file open. `unit`: its systemd unit, "" when it has none."""

    pid: int
    name: str
    unit: str

    def __str__(self):
        unit = ", " + self.unit if self.unit else ""
        return "{} (pid {}{})".format(self.name, self.pid, unit)


def holders(smi=None) -> List[Client]:
    """Processes that hold a GPU: from /proc, and the CUDA processes nvidia-smi knows of."""
    found = {}
    proc = paths.at("/proc")
    for pid in os.listdir(proc) if os.path.isdir(proc) else []:
        if pid.isdigit() and int(pid) != os.getpid() and _holds(os.path.join(proc, pid, "fd")):
            found[int(pid)] = _client(pid, paths.read("/proc/{}/comm".format(pid)).strip())
    if smi is not None:
        rc, out = smi.run("--query-compute-apps=pid,process_name", "--format=csv,noheader")
        for line in out.splitlines() if rc == 0 else []:
            pid, _, name = line.partition(",")
            if pid.strip().isdigit():
                found.setdefault(int(pid), _client(pid.strip(), name.strip()))
    return sorted(found.values())


def _holds(fd_dir):
    try:
        return any(
            _DEVICE.match(os.readlink(os.path.join(fd_dir, fd))) for fd in os.listdir(fd_dir)
        )
    except OSError:  # the process ended, or is not ours to look at
        return False


def _client(pid, name):
    units = re.findall(r"/([^/\n]+\.service)", paths.read("/proc/{}/cgroup".format(pid)))
    return Client(int(pid), name or "?", units[-1] if units else "")


def advice(smi=None) -> str:
    """What to do about a busy GPU, naming who keeps it busy."""
    names = ", ".join(str(c) for c in holders(smi))
    parts = ["stop {}, then run gpu-mig apply again".format(names or "what uses the GPU")]
    if os.path.isdir(paths.at("/sys/module/nvidia_drm")):
        parts.append("nvidia_drm is loaded and holds the GPU too (modprobe -r nvidia_drm)")
    return "; ".join(parts) + ". MIG_STOP_SERVICES in {} lists services it may stop itself.".format(
        paths.DEFAULTS
    )


def stop_listed(services, say) -> List[str]:
    """Stops those of `services` that are active, remembers them, and returns them."""
    active = [s for s in services if _systemctl("is-active", "--quiet", s) == 0]
    if active:
        remembered = paths.read_json(STOPPED).get("services", [])
        paths.write_json(STOPPED, {"services": sorted(set(remembered) | set(active))})
        say("stopping {} so that the GPU is free".format(", ".join(active)))
        _systemctl("stop", *active)
    return active


def keeps_driver(service) -> bool:
    """Whether the driver stays loaded because this service runs."""
    return "persistenced" in service


def start_driver_keeper(say) -> None:
    """Starts a stopped nvidia-persistenced: without it the driver may unload and forget slices."""
    services = paths.read_json(STOPPED).get("services", [])
    keepers = [s for s in services if keeps_driver(s)]
    if keepers:
        say("starting {} again".format(", ".join(keepers)))
        _systemctl("start", *keepers)
        paths.write_json(STOPPED, {"services": [s for s in services if s not in keepers]})


def start_again(say) -> None:
    """Starts what `stop_listed` stopped, also in a run that was killed. Never waits for them.

    At boot some of them are ordered after our own unit: waiting for them would wait for ourselves.
    """
    services = paths.read_json(STOPPED).get("services", [])
    if services:
        say("starting {} again".format(", ".join(services)))
        _systemctl("start", "--no-block", *services)
    paths.remove(STOPPED)


def operator_in_charge() -> str:
    """How we know that the GPU operator's mig-manager owns the layout; "" when it does not."""
    if _systemctl("is-enabled", "--quiet", "nvidia-mig-manager.service") == 0:
        return "nvidia-mig-manager.service is enabled"
    proc = paths.at("/proc")
    for pid in os.listdir(proc) if os.path.isdir(proc) else []:
        if pid.isdigit() and paths.read("/proc/{}/comm".format(pid)).strip() == "nvidia-mig-mana":
            return "nvidia-mig-manager runs (pid {})".format(pid)
    return ""


def refresh_cdi(say) -> None:
    """Has the CDI specification written anew: container runtimes name slices by it."""
    if _systemctl("is-enabled", "--quiet", "nvidia-cdi-refresh.service") == 0:
        say("refreshing CDI: nvidia-cdi-refresh.service")
        _systemctl("restart", "--no-block", "nvidia-cdi-refresh.service")
        return
    for spec in ("/var/run/cdi/nvidia.yaml", "/etc/cdi/nvidia.yaml"):
        if os.path.exists(paths.at(spec)):
            say("refreshing CDI: {}".format(spec))
            if _run(["nvidia-ctk", "cdi", "generate", "--output=" + paths.at(spec)]):
                say("warning: nvidia-ctk could not write {}".format(spec))


def reboot() -> None:
    """Asks systemd to reboot; returns at once."""
    _systemctl("reboot", "--no-block")


def _systemctl(*args):
    return _run(["systemctl"] + list(args))


def _run(argv):
    try:
        return subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=90,
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return 127
