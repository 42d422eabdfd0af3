"""Stand-ins for nvidia-persistenced, nv-fabricmanager and nvidia-modprobe, and kiln-lab-gpu.

Like the real daemons they fork (Type=forking, pid file) and hold the device files open, so that a
reset fails; they do nothing else. Device files are plain files: a lab guest has no NVIDIA character
device.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from . import box, gpus
from .gpus import Locked

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

STAND_IN = "AMI Kiln lab stand-in"


def device_files(driver: dict[str, Any]) -> list[str]:
    """Make /dev/nvidia* as nvidia-modprobe does; returns the files of the GPUs."""
    lab = gpus.load(driver)
    names = [f"{box.ROOT}/dev/nvidia{gpu.index}" for gpu in lab.gpus]
    os.makedirs(box.ROOT + "/dev", exist_ok=True)
    for name in [*names, box.ROOT + "/dev/nvidiactl", box.ROOT + "/dev/nvidia-uvm"]:
        os.close(os.open(name, os.O_CREAT | os.O_RDWR, 0o666))
    return names


def ready(name: str) -> dict[str, Any] | None:
    """The driver, when it is loaded and has a GPU; otherwise None, with a message on stderr."""
    driver = box.driver()
    if driver is None or not driver["loaded"] or not gpus.load(driver).gpus:
        sys.stderr.write(
            f"{name} failed to initialize. Check syslog for more details. ({STAND_IN})\n"
        )
        return None
    return driver


def serve(name: str, pid_file: str, foreground: bool, stop: Any = None) -> int:
    """Fork unless `foreground`, hold every GPU's device file, and wait for SIGTERM."""
    driver = ready(name)
    if driver is None:
        return 1
    child = 0 if foreground else os.fork()
    if child:
        # As Type=forking requires, the parent exits when the child is ready or has failed.
        while not box.alive(name) and os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.01)
        os._exit(0)
    held = [os.open(path, os.O_RDWR) for path in device_files(driver)]
    if not foreground:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(quiet, fd)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.makedirs(os.path.dirname(box.ROOT + pid_file), exist_ok=True)
    with open(box.ROOT + pid_file, "w", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    own_pid_file = f"{box.ROOT}/run/kiln-lab/{name}.pid.json"
    box.write_json(own_pid_file, os.getpid())
    try:
        while True:
            signal.pause()
    finally:
        if stop:
            stop()
        for fd in held:
            os.close(fd)
        # Deleted last: when the pid file is gone, everything else is done.
        for path in (own_pid_file, box.ROOT + pid_file):
            if os.path.exists(path):
                os.unlink(path)


def set_persistence(on: bool) -> None:
    """Set the persistence mode of every GPU, as persistenced does while it runs."""
    driver = box.driver()
    if driver is None:
        return
    with Locked():
        lab = gpus.load(driver)
        for gpu in lab.gpus:
            gpu.state["pm"] = on
        lab.save()


def persistenced(words: list[str]) -> int:
    """nvidia-persistenced [--user U] [--persistence-mode|--no-persistence-mode] [--verbose]"""
    if "--version" in words or "-v" in words:
        driver = box.driver()
        version = driver["version"] if driver else "unknown"
        print_line(f"nvidia-persistenced:  version {version} ({STAND_IN})")
        return 0
    if ready("nvidia-persistenced") is None:
        return 1
    on = "--no-persistence-mode" not in words
    set_persistence(on)
    return serve(
        "nvidia-persistenced", "/run/nvidia-persistenced/nvidia-persistenced.pid", False,
        lambda: set_persistence(False),
    )  # fmt: skip


def fabricmanager(words: list[str]) -> int:
    """nv-fabricmanager [-c CONFIG]: like the real one it fails without an NVSwitch."""
    driver = box.driver()
    if "-v" in words or "--version" in words:
        print_line(
            f"Fabric Manager version is : {driver['version'] if driver else 'unknown'} ({STAND_IN})"
        )
        return 0
    if driver is not None and not any(gpu.fabric for gpu in gpus.load(driver).gpus):
        sys.stderr.write(
            "request to query NVSwitch device information from NVSwitch driver failed with error:"
            f"WARNING Nothing to do [NV_WARN_NOTHING_TO_DO] ({STAND_IN})\n"
        )
        return 1
    return serve(
        "nv-fabricmanager",
        "/run/nvidia-fabricmanager/nv-fabricmanager.pid",
        "--foreground" in words,
    )


def modprobe(_words: list[str]) -> int:
    """nvidia-modprobe: makes the device files."""
    driver = box.driver()
    if driver is None or not driver["loaded"]:
        return 1
    device_files(driver)
    return 0


def handle(words: list[str]) -> int:
    """kiln-lab-gpu unload | hold [GPU ...] | show: manipulates the machine, for tests.

    unload: reset the state that the driver keeps (instances, Hopper's MIG mode). hold: act as a
    program that uses these GPUs (default: all) until it is killed. show: print the state as JSON.
    """
    driver = box.driver()
    if not words or words[0] not in ("unload", "hold", "show") or driver is None:
        print_line((handle.__doc__ or "").strip().split("\n")[0])
        return 2
    if words[0] == "unload":
        with Locked():
            lab = gpus.load(driver)
            if any(box.clients(gpu.index) for gpu in lab.gpus):
                sys.stderr.write("rmmod: ERROR: Module nvidia is in use\n")
                return 1
            if os.path.exists(gpus.STATE):
                os.unlink(gpus.STATE)
        return 0
    if words[0] == "show":
        print_line(json.dumps({g.index: g.state for g in gpus.load(driver).gpus}, indent=1))
        return 0
    paths = dict(enumerate(device_files(driver)))
    unknown = [word for word in words[1:] if not word.isdigit() or int(word) not in paths]
    if unknown:
        sys.stderr.write(f"kiln-lab-gpu hold: no GPU {unknown[0]} here (0 to {len(paths) - 1})\n")
        return 2
    chosen = [paths[int(word)] for word in words[1:]] or list(paths.values())
    held = [os.open(path, os.O_RDWR) for path in chosen]
    print_line(f"holding {len(held)} GPU(s)")
    signal.pause()
    return 0


def print_line(text: str) -> None:
    """Write a line to stdout and flush it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
