"""RegisterImage: an AMI of a snapshot, of an AMI's root volume or of a disk that a guest wrote."""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import moto.ec2.models.amis as moto_amis
from moto.core.utils import utcnow

from lab.amis import images
from lab.ec2 import imaging, known_images
from lab.guests.instances import LabInstance
from lab.shell import CommandError
from lab.storage import surrogates, volumes

log = logging.getLogger("lab.registrations")


def of_image(backend: Any, source: Any, wanted: images.Image) -> Any:
    """An AMI with the root snapshot of the AMI `source`; returns moto's. Raises EC2's errors."""
    imaging.check_name(backend, wanted.name)
    machines = LabInstance.machines
    original = imaging.image_of(source, backend.region_name)
    base = original.base or str(machines.base(original.distro, original.architecture))
    made = _numbered(replace(wanted, distro=original.distro, base=base, layers=original.layers))
    with images.in_progress(made.id, *made.layers):
        _keep_files(made)
        machines.made[made.id] = made
        ami = known_images.registered(backend, made)
        _with_snapshot(backend, ami, source.ebs_snapshot)
        images.save(machines.lab, made)
    return ami


def of_disk(backend: Any, snapshot: Any, wanted: images.Image) -> Any:
    """An AMI of a disk that a guest wrote; returns moto's, pending until the disk is copied."""
    imaging.check_name(backend, wanted.name)
    lab = LabInstance.machines.lab
    made = _numbered(replace(wanted, base=str(surrogates.below(lab))))
    made = replace(made, layers=[made.id])
    kept = contextlib.ExitStack()
    kept.enter_context(images.in_progress(made.id))
    _keep_files(made)
    ami = known_images.registered(backend, made)
    ami.state = "pending"
    _with_snapshot(backend, ami, snapshot)
    disk = LabInstance.machines.contents[snapshot.id]
    threading.Thread(target=_copy_root, args=(ami, made, disk, kept), daemon=True).start()
    return ami


def _numbered(image: images.Image) -> images.Image:
    return replace(image, id=moto_amis.random_ami_id(), created=utcnow().isoformat())


def _copy_root(ami: Any, image: images.Image, disk: Path, kept: contextlib.ExitStack) -> None:
    machines = LabInstance.machines
    with kept:
        try:
            layer = machines.lab.images / image.id / "layer"
            surrogates.copy_root(machines.lab, disk, layer)
            image = replace(image, distro=surrogates.distribution(layer))
            machines.made[image.id] = image
            images.save(machines.lab, image)
            ami.state = "available"
        except (CommandError, OSError) as error:
            log.error("%s: RegisterImage failed: %s", image.id, error)
            ami.state = "failed"


def _keep_files(image: images.Image) -> None:
    """Give the AMI the files of its further volumes' snapshots."""
    machines = LabInstance.machines
    for number, volume in enumerate(image.volumes):
        content = machines.contents.get(volume["Ebs"].get("SnapshotId", ""))
        if content:
            volume["File"] = f"volume-{number}"
            volumes.link(content, machines.lab.images / image.id / volume["File"])


def _with_snapshot(backend: Any, ami: Any, snapshot: Any) -> None:
    """It has the snapshot itself, not a copy."""
    backend.snapshots.pop(ami.ebs_snapshot.id, None)
    ami.ebs_snapshot = snapshot
