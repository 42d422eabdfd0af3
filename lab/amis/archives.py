"""AMIs as files in S3: what CreateStoreImageTask writes, and CreateRestoreImageTask reads.

The object is a tar file of the AMI's entry, its layers and its further volumes. It is the lab's own
format, as AWS's is AWS's own. The root filesystem below the layers is not in it: every lab of this
machine has it.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
import tarfile
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import moto.ec2.models.amis as moto_amis

from lab.amis import images
from lab.amis.images import Image
from lab.settings import Lab
from lab.shell import run
from lab.storage import disks, surrogates

_ENTRY = "kiln-image.json"
_ID = re.compile(r"ami-[0-9a-f]{17}")
_FILE = re.compile(r"volume-[0-9]{1,3}")


class NotStoredError(ValueError):
    """An object is not a stored AMI."""


def packed(lab: Lab, image: Image) -> bytes:
    """An AMI as an object. Raises CommandError."""
    with tempfile.TemporaryDirectory(dir=lab.state) as folder:
        (Path(folder) / _ENTRY).write_text(json.dumps(asdict(image)))
        files = [f"{layer}/layer" for layer in image.layers]
        files += [f"{image.id}/{volume['File']}" for volume in image.volumes if "File" in volume]
        made = Path(folder) / "object"
        run(*disks.TAR, "-cf", str(made), "-C", folder, _ENTRY, "-C", str(lab.images), *files)
        return made.read_bytes()


def _is_stored(path: Path) -> bool:
    try:
        with tarfile.open(path) as archive:
            first = archive.next()
    except tarfile.TarError:
        return False
    return first is not None and first.name == _ENTRY


def unpacked(lab: Lab, content: bytes) -> Image:
    """Unpack an object; returns the AMI's entry with a new id, its files in place.

    Who may write to the bucket may have made the object: of it no name leads out of the folders of
    the lab's AMIs, and no link or device is followed. Raises NotStoredError and CommandError.
    """
    with tempfile.TemporaryDirectory(dir=lab.images) as folder:
        object_file, tree = Path(folder) / "object", Path(folder) / "tree"
        object_file.write_bytes(content)
        tree.mkdir()
        if not _is_stored(object_file):
            raise NotStoredError("the object is not an AMI that the lab has stored")
        run(*disks.TAR, "-xpf", str(object_file), "-C", str(tree))
        image = _entry(lab, tree / _ENTRY)
        parts = [(layer, "layer") for layer in image.layers]
        parts += [(image.id, volume["File"]) for volume in image.volumes if "File" in volume]
        for owner, name in parts:
            kind = stat.S_ISDIR if name == "layer" else stat.S_ISREG
            if not _is(stat.S_ISDIR, tree / owner) or not _is(kind, tree / owner / name):
                raise NotStoredError(f"{owner}/{name} is missing, or is not what the lab stores")
        ids = {layer: moto_amis.random_ami_id() for layer in image.layers}
        own = ids.setdefault(image.id, moto_amis.random_ami_id())
        fields = asdict(image) | {"id": own, "layers": [ids[layer] for layer in image.layers]}
        made = Image(**fields)
        with images.in_progress(*ids.values()):
            for owner, name in parts:
                (lab.images / ids[owner]).mkdir(exist_ok=True)
                shutil.move(tree / owner / name, lab.images / ids[owner] / name)
            images.save(lab, made)
    return made


def _entry(lab: Lab, file: Path) -> Image:
    """The entry of an object. Raises NotStoredError for one that the lab has not written."""
    try:
        if not _is(stat.S_ISREG, file):
            raise NotStoredError("its entry is not a file")
        image = Image(**json.loads(file.read_text()))
        names = [volume["File"] for volume in image.volumes if "File" in volume]
        whole = all(map(_ID.fullmatch, [image.id, *image.layers]))
        whole = whole and all(map(_FILE.fullmatch, names)) and isinstance(image.attributes, dict)
    except (ValueError, TypeError, RecursionError):
        raise NotStoredError("its entry is not one of the lab's") from None
    base = Path(image.base).resolve()
    bases = (lab.shared / "bases").resolve()
    if not whole or (base.parent != bases and base != surrogates.below(lab).resolve()):
        raise NotStoredError("its entry is not one of the lab's")
    if not base.is_dir():
        raise NotStoredError(f"its root filesystem is not there any more: {image.base}")
    return image


def _is(kind: Any, path: Path) -> bool:
    """Whether a path is of that kind, and no link to one."""
    try:
        return bool(kind(path.lstat().st_mode))
    except OSError:
        return False
