"""Make a decision true: flags for units, the kernel module of the right flavour."""

import json
import os
import subprocess

FLAGS = "/run/kiln/gpu-boot"
ARCHIVE = "/opt/kiln/modules"
ORDER = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm")


def write_flags(decision, folder=FLAGS):
    """One empty file per thing that applies (units have ConditionPathExists on them), and why."""
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


def installed_flavour(run=None):
    """The flavour `modprobe nvidia` would load: "open", "proprietary" or None."""
    run = run or output
    # Debian calls the file nvidia-current.ko and makes nvidia an alias.
    names = ("nvidia", "nvidia-current")
    licences = [run(["modinfo", "-F", "license", name]).strip() for name in names]
    licence = licences[0] or licences[1]
    if not licence:
        return None
    return "proprietary" if licence == "NVIDIA" else "open"


def commands(decision, installed, kernel, archive=ARCHIVE, sysfs="/sys"):
    """The commands that load the module, as argument lists; and a warning or None.

    A flavour that is not installed is taken from `archive`/<kernel>/<flavour>/ when it was baked.
    """
    wanted = decision["module"]
    if wanted is None or os.path.isdir(os.path.join(sysfs, "module", "nvidia")):
        return [], None
    if installed is None:
        return [], "no nvidia module is installed for kernel %s" % kernel
    extra = [["modprobe", "--quiet", "gdrdrv"], ["modprobe", "--quiet", "nvidia-peermem"]]
    if decision["apply"]["nvlsm"]:
        extra.append(["modprobe", "ib_umad"])
    if wanted in (installed, "either"):
        return [["modprobe", "nvidia"], ["modprobe", "nvidia-uvm"], *extra], None
    folder = os.path.join(archive, kernel, wanted)
    files = [os.path.join(folder, name + ".ko") for name in ORDER]
    if os.path.exists(files[0]):
        return [*(["insmod", f] for f in files if os.path.exists(f)), *extra], None
    loads = [["modprobe", "nvidia"], ["modprobe", "nvidia-uvm"], *extra]
    return loads, "this GPU wants the %s module, but the image has only the %s one" % (
        wanted,
        installed,
    )


def output(command):
    """Standard output of a command, "" when it fails or is missing."""
    try:
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
