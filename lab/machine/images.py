"""The AMIs that users made in the lab, kept on disk."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lab.base.settings import Lab
from lab.machine import disks

log = logging.getLogger("lab.images")

_in_progress: Counter[str] = Counter()
_lock = threading.Lock()


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
    # The snapshots by device, as `lab.moto.ec2.known_images` reads them.
    snapshots: dict[str, dict[str, Any]] = field(default_factory=dict)


def save(lab: Lab, image: Image) -> None:
    """Write an AMI's entry beside its layer."""
    path = lab.images / image.id / "image.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two requests may save the same AMI at once: each writes a file of its own.
    fresh = path.with_suffix(f".{threading.get_ident()}.new")
    with fresh.open("w") as file:
        json.dump(asdict(image), file, indent=1)
        file.flush()
        os.fsync(file.fileno())  # else a power cut may leave the name with an empty file
    fresh.rename(path)


def load(lab: Lab) -> list[Image]:
    """The AMIs that were made in this lab, oldest first; without those whose entry is damaged."""
    images = [image for path in _entries(lab) if (image := _read(path))]
    return sorted(images, key=lambda image: image.created)


def _entries(lab: Lab) -> list[Path]:
    return list(lab.images.glob("ami-*/image.json"))


def _read(path: Path) -> Image | None:
    try:
        return Image(**json.loads(path.read_text()))
    except FileNotFoundError:  # deregistered meanwhile
        return None
    except (ValueError, TypeError) as error:
        log.warning("%s is not in this lab: %s is damaged: %s", path.parent.name, path, error)
        return None


def layer_paths(lab: Lab, base: Path, layers: list[str]) -> list[Path]:
    """The folders of an overlay, lowest first."""
    return [base, *(lab.images / layer / "layer" for layer in layers)]


def deregister(lab: Lab, image_id: str, in_use: set[str]) -> None:
    """Delete an AMI's entry, and its layer unless another AMI or an instance uses it."""
    (lab.images / image_id / "image.json").unlink(missing_ok=True)
    collect(lab, in_use)


@contextlib.contextmanager
def in_progress(*ids: str) -> Iterator[None]:
    """While inside, no layer of these AMIs is deleted: the AMI that needs them has no entry yet."""
    with _lock:
        _in_progress.update(ids)
    try:
        yield
    finally:
        with _lock:
            _in_progress.subtract(ids)


def collect(lab: Lab, in_use: set[str]) -> None:
    """Delete unused layers. `in_use` names those of running instances."""
    with _lock:
        needed = in_use | set(+_in_progress)
    for path in _entries(lab):
        image = _read(path)
        needed.update(image.layers if image else (), [path.parent.name])
    for folder in lab.images.glob("ami-*"):
        if folder.name not in needed:
            disks.delete_image(lab, folder.name)
