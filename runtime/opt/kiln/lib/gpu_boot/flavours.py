"""Kernel modules of both flavours: which are on the image, and the wanted one in its place.

Where both were baked, ARCHIVE/<kernel>/<flavour>/ holds each as it lies in /lib/modules/<kernel>/.
Put in place means copied there: modprobe, modinfo and nvidia-modprobe all find one flavour.
"""

import os
import shutil
import subprocess

ARCHIVE = "/opt/kiln/modules"
MODULES = "/lib/modules"
# Debian calls the file nvidia-current.ko and makes nvidia an alias.
DRIVER = ("nvidia", "nvidia-current")


def kernels(archive=ARCHIVE):
    """The kernels that both flavours were baked for."""
    return sorted(_listing(archive))


def archived(kernel, archive=ARCHIVE):
    """The flavours in the archive for a kernel; [] where only one was baked."""
    return sorted(_listing(os.path.join(archive, kernel)))


def installed(kernel, run=None):
    """The flavour `modprobe nvidia` would load on that kernel: "open", "proprietary" or None."""
    licence = field(kernel, "license", run)
    if not licence:
        return None
    return "proprietary" if licence == "NVIDIA" else "open"


def field(kernel, name, run=None):
    """What modinfo says of the driver's module on that kernel, "" without one."""
    run = run or output
    found = [run(["modinfo", "-k", kernel, "-F", name, module]).strip() for module in DRIVER]
    return found[0] or found[1]


def place(kernel, flavour, archive=ARCHIVE, modules=MODULES, run=None):
    """Put an archived flavour in place for a kernel; True when it was not there yet.

    A copy, not a link: DKMS writes through links. The driver itself comes last, so that a machine
    which loses power on the way finds the old flavour named, and starts over.
    Raises OSError when the disk refuses, or when the archive does not hold that driver.
    """
    run = run or output
    if installed(kernel, run) == flavour:
        return False
    home = os.path.join(archive, kernel, flavour)
    files = [
        os.path.relpath(os.path.join(folder, name), home)
        for folder, _, names in os.walk(home)
        for name in names
    ]
    for path in sorted(files, key=lambda path: (_module(path) in DRIVER, path)):
        _replace(os.path.join(home, path), os.path.join(modules, kernel, path))
    run(["depmod", kernel])
    if installed(kernel, run) != flavour:
        raise OSError("%s brought no %s driver" % (home, flavour))
    return True


def output(command):
    """Standard output of a command, "" when it fails or is missing."""
    try:
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def _module(path):
    """updates/dkms/nvidia-uvm.ko.xz is the module nvidia-uvm."""
    return os.path.basename(path).partition(".ko")[0]


def _replace(source, target):
    new = target + ".kiln-new"  # depmod looks for .ko at a name's end
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(source, "rb") as content, open(new, "wb") as stream:
        shutil.copyfileobj(content, stream, 1 << 20)
        stream.flush()
        os.fsync(stream.fileno())
    shutil.copymode(source, new)
    os.replace(new, target)


def _listing(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []
