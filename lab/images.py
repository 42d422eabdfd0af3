"""The lab's AMIs: stand-ins for public ones, and those that users made, kept on disk."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kiln.base.recipe import Recipe
from lab import disks
from lab.settings import Lab

AMAZON = "137112412989"
PUBLIC_SINCE = "2026-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class PublicImage:
    """A stand-in for an AMI that AWS or a vendor publishes, and how clients look it up."""

    id: str
    name: str
    description: str
    owner: str
    distro: str
    arch: str
    root_device: str
    ssm_parameter: str | None


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


def public_images(recipes: Iterable[Recipe]) -> list[PublicImage]:
    """A stand-in for each parent AMI of these recipes."""
    images = {}
    for recipe in recipes:
        source = recipe.source_ami
        digest = hashlib.sha256(f"{source}{recipe.arch}".encode()).hexdigest()[:17]
        name = (source.name or "").replace("*", "lab") or (
            f"kiln-lab-stand-in-{recipe.distro.id}-{recipe.flavor}-{recipe.arch}"
        )
        images[digest] = PublicImage(
            id=f"ami-{digest}",
            name=name,
            description=f"AMI Kiln lab stand-in for {recipe.distro.name} ({recipe.flavor})",
            owner=source.owner if (source.owner or "").isdigit() else AMAZON,  # type: ignore[arg-type]
            distro=recipe.distro.id,
            arch=recipe.arch,
            root_device=recipe.distro.root_device,
            ssm_parameter=source.ssm_parameter,
        )
    return list(images.values())


def write_public(lab: Lab, images: list[PublicImage]) -> Path:
    """Write the public AMIs in the format of `MOTO_AMIS_PATH`; returns the file."""
    path = lab.state / "public-amis.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [
        {
            "ami_id": image.id,
            "name": image.name,
            "description": image.description,
            "owner_id": image.owner,
            "public": True,
            "virtualization_type": "hvm",
            "architecture": image.arch,
            "state": "available",
            "image_type": "machine",
            "image_location": f"amazon/{image.name}",
            "hypervisor": "xen",
            "root_device_type": "ebs",
            "root_device_name": image.root_device,
            "sriov": "simple",
            "creation_date": PUBLIC_SINCE,
        }
        for image in images
    ]
    path.write_text(json.dumps(entries, indent=1))
    return path


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
    images = [Image(**json.loads(path.read_text())) for path in lab.images.glob("ami-*/image.json")]
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
