"""Disks are overlays: a distribution's root filesystem, frozen AMI layers, one's own changes.

An AMI is a list of folders, lowest first. CreateImage freezes an instance's upper folder by a
rename, so that it costs the same for an empty disk and a full one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab.settings import Lab
from lab.shell import CommandError, run

# Beside an instance's disk: the root filesystem that it stands on.
BASE = "base"


def folder(lab: Lab, instance_id: str) -> Path:
    """Where an instance keeps its disk, its console log and what the lab tells it."""
    return lab.instances / instance_id


def mount(lab: Lab, instance_id: str, layers: list[Path]) -> Path:
    """Mount an instance's disk over `layers` (lowest first); the mount point."""
    home = folder(lab, instance_id)
    merged = home / "root"
    if os.path.ismount(merged):
        return merged
    for name in ("upper", "work", "root"):
        (home / name).mkdir(parents=True, exist_ok=True)
    (home / BASE).write_text(str(layers[0]))
    lower = ":".join(str(layer) for layer in reversed(layers))
    options = f"lowerdir={lower},upperdir={home / 'upper'},workdir={home / 'work'}"
    run("mount", "-t", "overlay", f"{lab.bridge}-{instance_id}", "-o", options, str(merged))
    return merged


def unmount(lab: Lab, instance_id: str) -> None:
    """Unmount an instance's disk; its content stays."""
    merged = folder(lab, instance_id) / "root"
    if os.path.ismount(merged):
        # A killed guest may hold the mount for a moment longer.
        run("umount", "--lazy", str(merged))


def freeze(lab: Lab, instance_id: str, image_id: str) -> Path:
    """Turn what an instance changed into a layer of an AMI; the layer. The disk is not mounted."""
    layer = _new_layer(lab, image_id)
    (folder(lab, instance_id) / "upper").rename(layer)
    shutil.rmtree(folder(lab, instance_id) / "work", ignore_errors=True)
    return layer


def copy(lab: Lab, instance_id: str, image_id: str) -> Path:
    """Copy what an instance changed so far into a layer of an AMI, while it runs; the layer."""
    layer = _new_layer(lab, image_id)
    upper = folder(lab, instance_id) / "upper"
    try:
        run("env", "LC_ALL=C", "cp", "-a", "--reflink=auto", str(upper), str(layer))
    except CommandError as error:
        # A file that went away meanwhile is no failure: the image may be of a moment after.
        if not all(line.endswith("No such file or directory") for line in str(error).splitlines()):
            raise
    return layer


def _new_layer(lab: Lab, image_id: str) -> Path:
    layer = lab.images / image_id / "layer"
    layer.parent.mkdir(parents=True, exist_ok=True)
    return layer


def delete(lab: Lab, instance_id: str, *, keep_log: bool = True) -> None:
    """Delete an instance's disk. Its console log stays for `lab.logs` unless told otherwise."""
    unmount(lab, instance_id)
    home = folder(lab, instance_id)
    for name in ("upper", "work", "root", "lab"):
        shutil.rmtree(home / name, ignore_errors=True)
    (home / BASE).unlink(missing_ok=True)
    if not keep_log:
        shutil.rmtree(home, ignore_errors=True)


def delete_image(lab: Lab, image_id: str) -> None:
    """Delete an AMI's folder. Layers that other AMIs stand on must be kept: see images.py."""
    shutil.rmtree(lab.images / image_id, ignore_errors=True)


def mounts(folder: Path) -> list[Path]:
    """The mount points below a folder, deepest first."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        point = Path(line.split(" ")[1].replace("\\040", " "))
        if point.is_relative_to(folder):
            found.append(point)
    return sorted(found, reverse=True)
