"""The Recycle Bin: retention rules, and the AMIs and snapshots that wait in it.

A deregistered AMI or a deleted snapshot that a rule matches is kept for the rule's time, and can be
restored; then it is gone. The bin lasts as long as the lab is up. Volumes are not kept.

https://docs.aws.amazon.com/ebs/latest/userguide/recycle-bin.html
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from lab.amis import images as entries
from lab.ec2 import imaging
from lab.ec2.calls import Request, call, error
from lab.guests.instances import LabInstance

IMAGE, SNAPSHOT = "EC2_IMAGE", "EBS_SNAPSHOT"
_DAY = 24 * 3600


@dataclass
class Rule:
    """A retention rule of a region. `tags` and `excluded` are as Recycle Bin's API has them."""

    id: str
    kind: str
    days: int
    description: str
    tags: list[dict[str, str]]
    excluded: list[dict[str, str]]


@dataclass(frozen=True)
class Kept:
    """What is in the bin: moto's AMI or snapshot, and when it came and goes."""

    thing: Any
    entered: float
    leaves: float

    def times(self) -> dict[str, datetime]:
        """The two moments as EC2 shows them."""
        return {
            "RecycleBinEnterTime": datetime.fromtimestamp(self.entered, timezone.utc),
            "RecycleBinExitTime": datetime.fromtimestamp(self.leaves, timezone.utc),
        }


@dataclass
class Bin:
    """A region's rules, and what they keep, by id."""

    rules: dict[str, Rule] = field(default_factory=dict)
    images: dict[str, Kept] = field(default_factory=dict)
    snapshots: dict[str, Kept] = field(default_factory=dict)


def of(backend: Any) -> Bin:
    """The bin of moto's backend of an account and region, without what has had its time."""
    if not hasattr(backend, "kiln_bin"):
        backend.kiln_bin = Bin()
    kept_bin: Bin = backend.kiln_bin
    now = time.time()
    for image_id, kept in list(kept_bin.images.items()):
        if kept.leaves < now:
            backend.amis[image_id] = kept_bin.images.pop(image_id).thing
            backend.deregister_image(image_id)
    for snapshot_id, kept in list(kept_bin.snapshots.items()):
        if kept.leaves < now:
            del kept_bin.snapshots[snapshot_id]
            LabInstance.machines.forget_snapshot(snapshot_id)
    return kept_bin


def keeps_image(backend: Any, ami: Any) -> bool:
    """Put an AMI that is deregistered into the bin, if a rule applies to it."""
    kept = _kept(backend, IMAGE, ami)
    if kept is None:
        return False
    backend.amis.pop(ami.id)
    backend.deleted_amis.append(ami.id)
    of(backend).images[ami.id] = kept
    _mark(ami.id, recycled=True)
    return True


def keeps_snapshot(backend: Any, snapshot: Any) -> bool:
    """Put a snapshot that is deleted into the bin, if a rule applies to it."""
    kept = _kept(backend, SNAPSHOT, snapshot)
    if kept is None:
        return False
    backend.snapshots.pop(snapshot.id)
    of(backend).snapshots[snapshot.id] = kept
    return True


def _mark(image_id: str, *, recycled: bool) -> None:
    """Note beside an AMI's layer whether it is in the bin: the next lab does not bring it back."""
    machines = LabInstance.machines
    image = machines.made.get(image_id)
    if image:
        attributes = image.attributes | {entries.RECYCLED: recycled}
        machines.made[image_id] = replace(image, attributes=attributes)
        entries.save(machines.lab, machines.made[image_id])


def _kept(backend: Any, kind: str, thing: Any) -> Kept | None:
    """Rules with tags go before those of the whole region, and the longest of them counts."""
    tags = {tag["key"]: tag["value"] for tag in thing.get_tags()}
    rules = [rule for rule in of(backend).rules.values() if rule.kind == kind]
    by_tag = [rule for rule in rules if any(_has(tags, wanted) for wanted in rule.tags)]
    of_region = [
        rule
        for rule in rules
        if not rule.tags and not any(_has(tags, wanted) for wanted in rule.excluded)
    ]
    matches = by_tag or of_region
    if not matches:
        return None
    now = time.time()
    return Kept(thing, now, now + max(rule.days for rule in matches) * _DAY)


def _has(tags: dict[str, str], wanted: dict[str, str]) -> bool:
    key, value = wanted["ResourceTagKey"], wanted.get("ResourceTagValue")
    return key in tags and value in (None, "", tags[key])


@call("ListImagesInRecycleBin")
def _images(request: Request) -> dict[str, Any]:
    kept = of(request.backend).images
    for wanted in request.parameters.get("ImageIds") or []:
        _image(request, wanted)
    wanted_ids = request.parameters.get("ImageIds") or list(kept)
    return {
        "Images": [
            {
                "ImageId": image_id,
                "Name": kept[image_id].thing.name,
                "Description": kept[image_id].thing.description,
                **kept[image_id].times(),
            }
            for image_id in wanted_ids
        ]
    }


def _image(request: Request, image_id: str) -> Kept:
    kept = of(request.backend).images.get(image_id)
    if kept is None:
        raise error(
            "InvalidAMIID.NotFound", f"The image id '[{image_id}]' is not in the Recycle Bin"
        )
    return kept


@call("RestoreImageFromRecycleBin")
def _restore_image(request: Request) -> dict[str, Any]:
    """It comes back as it was, if its snapshots are there and its name is free."""
    backend = request.backend
    ami = _image(request, request.parameters["ImageId"]).thing
    for device in ami.block_device_mappings:
        snapshot = device["Ebs"].get("SnapshotId")
        if snapshot and snapshot not in backend.snapshots:
            raise error("InvalidSnapshot.NotFound", f"The snapshot '{snapshot}' does not exist.")
    imaging.check_name(backend, ami.name)
    del of(backend).images[ami.id]
    backend.deleted_amis.remove(ami.id)
    backend.amis[ami.id] = ami
    _mark(ami.id, recycled=False)
    return {"Return": True}


@call("ListSnapshotsInRecycleBin")
def _snapshots(request: Request) -> dict[str, Any]:
    kept = of(request.backend).snapshots
    for wanted in request.parameters.get("SnapshotIds") or []:
        _snapshot(request, wanted)
    wanted_ids = request.parameters.get("SnapshotIds") or list(kept)
    return {
        "Snapshots": [
            {
                "SnapshotId": snapshot_id,
                "Description": kept[snapshot_id].thing.description,
                "VolumeId": kept[snapshot_id].thing.volume.id,
                **kept[snapshot_id].times(),
            }
            for snapshot_id in wanted_ids
        ]
    }


def _snapshot(request: Request, snapshot_id: str) -> Kept:
    kept = of(request.backend).snapshots.get(snapshot_id)
    if kept is None:
        raise error(
            "InvalidSnapshot.NotFound",
            f"The snapshot '{snapshot_id}' is not in the Recycle Bin.",
        )
    return kept


@call("RestoreSnapshotFromRecycleBin")
def _restore_snapshot(request: Request) -> dict[str, Any]:
    backend = request.backend
    snapshot = _snapshot(request, request.parameters["SnapshotId"]).thing
    del of(backend).snapshots[snapshot.id]
    backend.snapshots[snapshot.id] = snapshot
    return {
        "SnapshotId": snapshot.id,
        "Description": snapshot.description,
        "Encrypted": bool(snapshot.encrypted),
        "OwnerId": snapshot.owner_id,
        "Progress": "100%",
        "StartTime": snapshot.start_time,
        "State": snapshot.status,
        "VolumeId": snapshot.volume.id,
        "VolumeSize": int(snapshot.volume.size),
        "SseType": "sse-ebs",
    }
