"""Both kinds of kernel module (open, proprietary): which are on the image, and installing one.

If both were baked, ARCHIVE/<kernel>/<kind>/ holds the files of each below /lib/modules/<kernel>/.
Installing means copying them there: modprobe, modinfo and nvidia-modprobe all find the same kind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

ARCHIVE = "/opt/kiln/modules"
MODULES = "/lib/modules"
# Debian names the file nvidia-current.ko and makes nvidia an alias.
DRIVER = ("nvidia", "nvidia-current")


def kernels(archive: str = ARCHIVE) -> list[str]:
    """The kernels for which both kinds were baked."""
    return sorted(_listing(archive))


def archived(kernel: str, archive: str = ARCHIVE) -> list[str]:
    """The kinds in the archive for a kernel; [] if only one was baked."""
    return sorted(_listing(os.path.join(archive, kernel)))


def installed(kernel: str, run: Callable[[list[str]], str] | None = None) -> str | None:
    """The kind that `modprobe nvidia` loads on that kernel: "open", "proprietary" or None."""
    held = field(kernel, "license", run)
    if not held:
        return None
    return "proprietary" if held == "NVIDIA" else "open"


def field(kernel: str, name: str, run: Callable[[list[str]], str] | None = None) -> str:
    """A field of modinfo for the driver's module on that kernel, "" without a module."""
    run = run or output
    for module in DRIVER:
        value = run(["modinfo", "-k", kernel, "-F", name, module]).strip()
        if value:
            return value
    return ""


def place(
    kernel: str,
    kind: str,
    archive: str = ARCHIVE,
    modules: str = MODULES,
    run: Callable[[list[str]], str] | None = None,
) -> bool:
    """Install an archived kind for a kernel; True when it was not installed before.

    Files are copied, because DKMS writes through links. The driver itself comes last: after a power
    failure modinfo still shows the old kind, and the copy starts again.
    Raises OSError when the disk refuses, depmod fails, or the archive lacks that driver.
    """
    run = run or output
    if installed(kernel, run) == kind:
        return False
    home = os.path.join(archive, kernel, kind)
    files = [
        os.path.relpath(os.path.join(folder, name), home)
        for folder, _, names in os.walk(home)
        for name in names
    ]
    for path in sorted(files, key=lambda path: (_module(path) in DRIVER, path)):
        _replace(os.path.join(home, path), os.path.join(modules, kernel, path))
    run(["depmod", kernel])  # raises OSError
    if installed(kernel, run) != kind:
        raise OSError(f"{home} contains no {kind} driver")
    return True


def output(command: list[str]) -> str:
    """Standard output of a command, "" when modinfo finds no module. Raises OSError."""
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if done.returncode == 0:
        return done.stdout.decode("utf-8", "replace")
    if command[0] == "modinfo" and done.returncode == 1:
        return ""
    raise OSError("`{}` failed with status {}".format(" ".join(command), done.returncode))


def _module(path: str) -> str:
    """The module name of a path: updates/dkms/nvidia-uvm.ko.xz is nvidia-uvm."""
    return os.path.basename(path).partition(".ko")[0]


def _replace(source: str, target: str) -> None:
    new = target + ".kiln-new"  # depmod ignores names that do not end in .ko
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(source, "rb") as content, open(new, "wb") as stream:
        shutil.copyfileobj(content, stream, 1 << 20)
        stream.flush()
        os.fsync(stream.fileno())
    shutil.copymode(source, new)
    os.replace(new, target)


def _listing(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
