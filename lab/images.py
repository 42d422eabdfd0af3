"""The lab's AMIs: stand-ins for the public ones, and those a user made, kept on disk."""

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
    """A stand-in for an image that AWS or a vendor publishes, and how clients look it up."""

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

    `base` is the folder of the distribution's root filesystem it was made on; `layers` are AMI
    ids, lowest first, itself last.
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
    tags: dict[str, str] = field(default_factory=dict)
    snapshot_tags: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)


def public_images(recipes: Iterable[Recipe]) -> list[PublicImage]:
    """One stand-in per parent image that a matrix names."""
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
    """Write the public images as moto wants them (`MOTO_AMIS_PATH`); the file."""
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
    """Keep what is known of an AMI beside its layer."""
    path = lab.images / image.id / "image.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two calls may save one image at the same time: each through a file of its own.
    fresh = path.with_suffix(f".{threading.get_ident()}.new")
    fresh.write_text(json.dumps(asdict(image), indent=1))
    fresh.rename(path)


def load(lab: Lab) -> list[Image]:
    """The AMIs that earlier runs of this lab made, oldest first."""
    found = [Image(**json.loads(path.read_text())) for path in lab.images.glob("ami-*/image.json")]
    return sorted(found, key=lambda image: image.created)


def layer_paths(lab: Lab, base: Path, layers: list[str]) -> list[Path]:
    """The folders an overlay is made of, lowest first."""
    return [base, *(lab.images / layer / "layer" for layer in layers)]


def deregister(lab: Lab, image_id: str, in_use: set[str]) -> None:
    """Forget an AMI. Its layer goes when neither an AMI nor an instance stands on it any more."""
    (lab.images / image_id / "image.json").unlink(missing_ok=True)
    collect(lab, in_use)


def collect(lab: Lab, in_use: set[str]) -> None:
    """Delete layers that nothing stands on. `in_use` names those under running instances."""
    needed = set(in_use)
    for image in load(lab):
        needed.update(image.layers, [image.id])
    for folder in lab.images.glob("ami-*"):
        if folder.name not in needed:
            disks.delete_image(lab, folder.name)
