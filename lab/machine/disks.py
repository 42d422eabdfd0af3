"""Disks are overlays: a distribution's root filesystem, frozen AMI layers, the instance's changes.

An AMI is a list of folders, lowest first. CreateImage freezes an instance's upper folder by
renaming it, which takes the same time for an empty disk and a full one. `lab.machine.namespace`
mounts them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from lab.base.settings import Lab

# A file beside an instance's disk: the path of the root filesystem below it.
BASE = "base"


def folder(lab: Lab, instance_id: str) -> Path:
    """The folder of an instance's disk, console log and files from the lab."""
    return lab.instances / instance_id


def prepare(lab: Lab, instance_id: str, layers: list[Path]) -> Path:
    """Make the folders of an instance's disk over `layers` (lowest first); returns its folder.

    `lab.machine.namespace` mounts it, where only the guest sees it.
    """
    home = folder(lab, instance_id)
    for name in ("upper", "work"):
        (home / name).mkdir(parents=True, exist_ok=True)
    (home / BASE).write_text(str(layers[0]))
    return home


def freeze(lab: Lab, instance_id: str, image_id: str) -> Path:
    """Turn an instance's changes into a layer of an AMI; returns it. The guest must be off.

    There are none, and the layer is empty, when the instance was not on since the last AMI of it.
    """
    layer = lab.images / image_id / "layer"
    layer.parent.mkdir(parents=True, exist_ok=True)
    try:
        (folder(lab, instance_id) / "upper").rename(layer)
    except FileNotFoundError:
        layer.mkdir()
    shutil.rmtree(folder(lab, instance_id) / "work", ignore_errors=True)
    return layer


def delete(lab: Lab, instance_id: str, *, keep_log: bool = True) -> None:
    """Delete an instance's disk. `keep_log` keeps its console log for `lab.logs`."""
    home = folder(lab, instance_id)
    for name in ("upper", "work", "lab", "given"):
        shutil.rmtree(home / name, ignore_errors=True)
    (home / BASE).unlink(missing_ok=True)
    if not keep_log:
        shutil.rmtree(home, ignore_errors=True)


def delete_image(lab: Lab, image_id: str) -> None:
    """Delete an AMI's folder. `images.collect` decides which layers are no longer used."""
    shutil.rmtree(lab.images / image_id, ignore_errors=True)
