"""Carries out a decision: flags for units, the right kind of the kernel module, gdrdrv's device."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from typing import Any

from gpu_boot import kernel_modules

FLAGS = "/run/kiln/gpu-boot"
# The modules that use the driver's module.
USERS = ("gdrdrv", "efa_nv_peermem", "nvidia-peermem", "nvidia-uvm", "nvidia-drm", "nvidia-modeset")


def write_flags(decision: dict[str, Any], folder: str = FLAGS) -> None:
    """An empty file per part that applies (for ConditionPathExists of units), and the reasons."""
    os.makedirs(folder, exist_ok=True)
    for name, applies in decision["apply"].items():
        path = os.path.join(folder, name)
        if applies:
            open(path, "w").close()
        elif os.path.exists(path):
            os.remove(path)
    with open(os.path.join(folder, "decision.json"), "w") as stream:
        json.dump(decision, stream, indent=1, sort_keys=True)
        stream.write("\n")


def kind_to_load(
    decision: dict[str, Any], installed: str | None, archived: list[str]
) -> tuple[str | None, str | None]:
    """The kind of module to load, of those on the image, and a warning or None.

    If both kinds support the GPU and both were baked, the choice of AWS is used.
    """
    wanted = decision["module"]
    if wanted is None or installed is None:
        return None, None
    if wanted == "either":
        return (decision["prefers"] if decision["prefers"] in archived else installed), None
    if wanted == installed or wanted in archived:
        return wanted, None
    return (
        installed,
        f"this GPU needs the {wanted} module, but the image has only the {installed} module",
    )


def select(
    decision: dict[str, Any],
    archive: str = kernel_modules.ARCHIVE,
    modules: str = kernel_modules.MODULES,
    run: Callable[[list[str]], str] | None = None,
) -> list[str]:
    """Install the right kind for every kernel for which both were baked.

    Returns sentences for the journal. Without a GPU nothing is done.
    """
    sentences = []
    for kernel in kernel_modules.kernels(archive):
        present = kernel_modules.installed(kernel, run)
        wanted, _ = kind_to_load(decision, present, kernel_modules.archived(kernel, archive))
        if present is None and decision["module"] is not None:
            sentences.append(f"<4>modinfo finds no nvidia module for kernel {kernel}")
        if wanted is None:
            continue
        if kernel_modules.place(kernel, wanted, archive, modules, run):
            sentences.append(f"the {wanted} module replaces the {present} module")
        else:
            sentences.append(f"the {wanted} module is installed")
    return sentences


def write_options(
    decision: dict[str, Any],
    kernel: str,
    folder: str = "/run/modprobe.d",
    run: Callable[[list[str]], str] | None = None,
) -> None:
    """Give the preferred module its options, whoever loads it first in this boot.

    Not the other kind: the open one needs GSP firmware. A kernel without a module is that of a
    lab's host.
    """
    if decision["options"] and kernel_modules.installed(kernel, run) in (None, decision["prefers"]):
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "kiln-gpu.conf"), "w") as stream:
            for name in kernel_modules.DRIVER:
                stream.write("options {} {}\n".format(name, " ".join(decision["options"])))


def commands(
    decision: dict[str, Any],
    kernel: str,
    archive: str = kernel_modules.ARCHIVE,
    sysfs: str = "/sys",
    run: Callable[[list[str]], str] | None = None,
) -> tuple[list[list[str]], str | None]:
    """The commands that load the module, as argument lists; and a warning or None.

    A driver that is already loaded is left alone, unless it is not the installed one: udev, or a
    file in modules-load.d, may have loaded it, but then without the modules that use it.
    """
    if decision["module"] is None:
        return [], None
    installed, archived = (
        kernel_modules.installed(kernel, run),
        kernel_modules.archived(kernel, archive),
    )
    if installed is None:
        return [], f"no nvidia module is installed for kernel {kernel}: modinfo finds none"
    _, warning = kind_to_load(decision, installed, archived)
    driver = ["modprobe", "nvidia"]
    commands = [driver]
    loaded = _loaded(sysfs)
    if loaded is not None:
        remove = [["modprobe", "--quiet", "--remove", name] for name in (*USERS, "nvidia")]
        other = archived and loaded != kernel_modules.field(kernel, "srcversion", run)
        commands = [*remove, driver] if other else []
    commands.append(["modprobe", "nvidia-uvm"])
    commands += [["modprobe", "--quiet", name] for name in USERS[:3]]
    if decision["apply"]["nvlsm"]:
        commands.append(["modprobe", "ib_umad"])
    return commands, warning


def make_gdrdrv_node(devices: str = "/proc/devices", node: str = "/dev/gdrdrv") -> None:
    """Make the device of gdrdrv, if it is loaded: it registers a number and nothing that udev sees.

    So does the service of NVIDIA's packages, which ParallelCluster starts on nodes with a GPU:
    https://github.com/NVIDIA/gdrcopy/blob/v2.6/packages/rhel/init.d/gdrcopy
    """
    with open(devices) as stream:
        majors = [line.split()[0] for line in stream if line.split()[1:] == ["gdrdrv"]]
    if majors:
        if os.path.exists(node):
            os.remove(node)
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(int(majors[0]), 0))
        os.chmod(node, 0o666)  # noqa: S103  # mknod obeys the umask


def _loaded(sysfs: str) -> str | None:
    """srcversion of the loaded driver, None when no driver is loaded."""
    folder = os.path.join(sysfs, "module", "nvidia")
    if not os.path.isdir(folder):
        return None
    try:
        with open(os.path.join(folder, "srcversion")) as stream:
            return stream.read().strip()
    except OSError:
        return ""
