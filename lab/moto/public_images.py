"""Stand-ins for AMIs that AWS and vendors publish: what `public_images.yaml` lists."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from kiln import facts
from kiln.base import yaml_files
from kiln.base.recipe import Recipe
from kiln.base.vocabulary import DEB_ARCH, UNAME_ARCH
from lab.base.settings import Lab
from lab.rootfs import parents

AMAZON = "137112412989"
# In the description and the tags of each: what it is, and what it is not.
STAND_IN = "kiln-lab-stand-in"
_FILE = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class PublicImage:
    """A stand-in for an AMI that AWS or a vendor publishes, and how clients look it up.

    Times are written as EC2 writes them. `boot_mode` is None where EC2 shows none. `kind` is that
    of `lab.rootfs.parents`: what AWS added to the distribution. `texts` are
    parameters with another value than the id.
    """

    id: str
    name: str
    description: str
    owner: str
    distro: str
    arch: str
    root_device: str
    parameters: tuple[str, ...]
    created: str
    deprecated: str
    boot_mode: str | None
    kind: str = ""
    texts: tuple[tuple[str, str], ...] = ()

    @property
    def base(self) -> str:
        """The name of its root filesystem in the lab."""
        return f"{self.distro}{parents.SEPARATOR}{self.kind}" if self.kind else self.distro

    @property
    def disk(self) -> int:
        """GiB of its snapshot; ecs-gpu has that of ecs."""
        return facts.parent_disk(self.kind.split("-")[0])


def public_images(recipes: Iterable[Recipe]) -> list[PublicImage]:
    """Every public AMI of the lab: the known ones, and the other parents of these recipes."""
    images = {image.id: image for image in (*_images(), *map(parent, recipes))}
    return list(images.values())


def parent(recipe: Recipe) -> PublicImage:
    """The stand-in for the parent AMI of a recipe."""
    source = recipe.source_ami
    for image in _images():
        if image.arch != recipe.arch or image.distro != recipe.distro.id:
            continue
        if source.ssm_parameter in image.parameters or (
            source.name
            and fnmatchcase(image.name, source.name)
            and source.owner in (image.owner, "amazon")
        ):
            return image
    digest = hashlib.sha256(f"{source}{recipe.arch}".encode()).hexdigest()[:17]
    return PublicImage(
        id=f"ami-{digest}",
        name=(source.name or "").replace("*", "lab")
        or f"{STAND_IN}-{recipe.distro.id}-{recipe.flavor}-{recipe.arch}",
        description=f"{recipe.distro.name} ({recipe.flavor}) ({STAND_IN})",
        owner=source.owner if (source.owner or "").isdigit() else AMAZON,  # type: ignore[arg-type]
        distro=recipe.distro.id,
        arch=recipe.arch,
        root_device=recipe.distro.root_device,
        parameters=(source.ssm_parameter,) if source.ssm_parameter else (),
        **_times("2026-01-01", _file()["deprecated"]),
        boot_mode=None,
    )


@cache
def _file() -> dict[str, Any]:
    content: dict[str, Any] = yaml_files.read_plain(_FILE)
    return content


@cache
def _images() -> tuple[PublicImage, ...]:
    return tuple(image for entry in _file()["images"] for image in _entry_images(entry))


def _entry_images(entry: dict[str, Any]) -> Iterator[PublicImage]:
    each: dict[str, list[str]] = entry.get("each", {})
    for arch, *values in itertools.product(entry["arches"], *each.values()):
        words = {"arch": arch, "deb_arch": DEB_ARCH[arch], "uname_arch": UNAME_ARCH[arch]}
        words |= dict(zip(each, values, strict=True))
        more = [name for value in values for name in entry.get("also", {}).get(value, [])]
        name = entry["name"].format(**words)
        words |= {"name": name, "id": f"ami-{hashlib.sha256(name.encode()).hexdigest()[:17]}"}
        yield PublicImage(
            id=words["id"],
            name=name,
            description=f"{entry['description'].format(**words)} ({STAND_IN})",
            owner=entry["owner"],
            distro=entry["distro"],
            arch=arch,
            root_device=facts.distro(entry["distro"])["root_device"],
            parameters=tuple(form.format(**words) for form in (*entry["parameters"], *more)),
            **_times(
                entry["created"],
                entry.get("deprecated", _file()["deprecated"]),
                superseded=entry.get("superseded", False),
            ),
            boot_mode=entry["boot_mode"].get(arch),
            kind=entry.get("kind", ""),
            texts=tuple(
                (parameter.format(**words), text.format(**words))
                for parameter, text in entry.get("texts", {}).items()
            ),
        )


def _times(created: str, days: int, *, superseded: bool = False) -> dict[str, Any]:
    """Return an image's times of creation and deprecation: for one that stands for the vendor's
    newest, not before next month."""
    first = datetime.fromisoformat(created).replace(tzinfo=timezone.utc)
    last = first + timedelta(days=days)
    if not superseded:
        last = max(last, datetime.now(timezone.utc) + timedelta(days=30))
    form = "%Y-%m-%dT%H:%M:%S.000Z"
    return {"created": first.strftime(form), "deprecated": last.strftime(form)}


def write(lab: Lab, images: list[PublicImage]) -> Path:
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
            "creation_date": image.created,
            "boot_mode": image.boot_mode,
            "tags": {STAND_IN: image.distro},
        }
        for image in images
    ]
    path.write_text(json.dumps(entries, indent=1))
    return path
