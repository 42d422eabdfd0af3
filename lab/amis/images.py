"""The AMIs that users made in the lab, kept on disk."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab.settings import Lab
from lab.storage import disks

# The attribute of an AMI that is in the Recycle Bin.
RECYCLED = "recycled"


@dataclass(frozen=True)
class Image:
    """An AMI that was made in the lab.

    `base` is the folder of the root filesystem below it; `layers` are AMI ids, lowest first, with
    its own id last.
    """

    id: str
    name: str
    region: str
    description: str
    architecture: str
    root_device_name: str
    distro: str
    base: str
    layers: list[str]
    created: str
    instance_id: str
    volume_size: int
    encrypted: bool
    kms_key_id: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    snapshot_tags: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    # The volumes besides the root: block device mappings as EC2 shows them.
    volumes: list[dict[str, Any]] = field(default_factory=list)


def save(lab: Lab, image: Image) -> None:
    """Write an AMI's entry beside its layer."""
    path = lab.images / image.id / "image.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two requests may save the same AMI at once: each writes a file of its own.
    fresh = path.with_suffix(f".{threading.get_ident()}.new")
    fresh.write_text(json.dumps(asdict(image), indent=1))
    fresh.rename(path)


def load(lab: Lab) -> list[Image]:
    """The AMIs that were made in this lab, oldest first."""
    images = []
    for path in lab.images.glob("ami-*/image.json"):
        with contextlib.suppress(FileNotFoundError):  # deregistered meanwhile
            images.append(Image(**json.loads(path.read_text())))
    return sorted(images, key=lambda image: image.created)


def layer_paths(lab: Lab, base: Path, layers: list[str]) -> list[Path]:
    """The folders of an overlay, lowest first."""
    return [base, *(lab.images / layer / "layer" for layer in layers)]


def deregister(lab: Lab, image_id: str, in_use: set[str]) -> None:
    """Delete an AMI's entry, and its layer unless another AMI or an instance uses it."""
    (lab.images / image_id / "image.json").unlink(missing_ok=True)
    collect(lab, in_use)


def collect(lab: Lab, in_use: set[str]) -> None:
    """Delete unused layers. `in_use` names those of running instances."""
    needed = set(in_use)
    for image in load(lab):
        needed.update(image.layers, [image.id])
    for folder in lab.images.glob("ami-*"):
        if folder.name not in needed:
            disks.delete_image(lab, folder.name)
