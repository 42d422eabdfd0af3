"""Make a decision true: flags for units, the kernel module of the right flavour."""

import json
import os

from gpu_boot import flavours

FLAGS = "/run/kiln/gpu-boot"
# What uses the driver's module, before the module itself.
USERS = ("gdrdrv", "efa_nv_peermem", "nvidia-peermem", "nvidia-uvm", "nvidia-drm", "nvidia-modeset")


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


def flavour(decision, installed, archived):
    """The flavour to load out of those on the image, and a warning or None.

    Where both modules serve the GPU and both were baked, AWS's own choice is taken.
    """
    wanted = decision["module"]
    if wanted is None or installed is None:
        return None, None
    if wanted == "either":
        return (decision["prefers"] if decision["prefers"] in archived else installed), None
    if wanted == installed or wanted in archived:
        return wanted, None
    return installed, "this GPU wants the %s module, but the image has only the %s one" % (
        wanted,
        installed,
    )


def select(decision, archive=flavours.ARCHIVE, modules=flavours.MODULES, run=None):
    """Put the right flavour in place for every kernel that both were baked for.

    Returns sentences for the journal. Nothing is done without a GPU.
    """
    said = []
    for kernel in flavours.kernels(archive):
        there = flavours.installed(kernel, run)
        wanted, _ = flavour(decision, there, flavours.archived(kernel, archive))
        if wanted is None:
            continue
        if flavours.place(kernel, wanted, archive, modules, run):
            said.append("the %s module takes the place of the %s one" % (wanted, there))
        else:
            said.append("the %s module is in place" % wanted)
    return said


def commands(decision, kernel, archive=flavours.ARCHIVE, sysfs="/sys", run=None):
    """The commands that load the module, as argument lists; and a warning or None.

    A module that something has loaded before is left alone, unless it is not the one in place.
    """
    if decision["module"] is None:
        return [], None
    installed, archived = flavours.installed(kernel, run), flavours.archived(kernel, archive)
    if installed is None:
        return [], "no nvidia module is installed for kernel %s" % kernel
    chosen, warning = flavour(decision, installed, archived)
    unload = []
    loaded = _loaded(sysfs)
    if loaded is not None:
        if not archived or loaded == flavours.field(kernel, "srcversion", run):
            return [], warning
        unload = [["modprobe", "--quiet", "--remove", name] for name in (*USERS, "nvidia")]
    driver = ["modprobe", "nvidia"]
    if archived and chosen == decision["prefers"]:
        driver += decision["options"]
    extra = [["modprobe", "--quiet", "gdrdrv"], ["modprobe", "--quiet", "nvidia-peermem"]]
    if decision["apply"]["nvlsm"]:
        extra.append(["modprobe", "ib_umad"])
    return [*unload, driver, ["modprobe", "nvidia-uvm"], *extra], warning


def _loaded(sysfs):
    """srcversion of the loaded driver, None when none is."""
    folder = os.path.join(sysfs, "module", "nvidia")
    if not os.path.isdir(folder):
        return None
    try:
        with open(os.path.join(folder, "srcversion")) as stream:
            return stream.read().strip()
    except OSError:
        return ""
