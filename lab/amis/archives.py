"""AMIs as files in S3: what CreateStoreImageTask writes, and CreateRestoreImageTask reads.

The object is a tar file of the AMI's entry, its layers and its further volumes. It is the lab's own
format, as AWS's is AWS's own. The root filesystem below the layers is not in it: every lab of this
machine has it.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from dataclasses import asdict
from pathlib import Path

import moto.ec2.models.amis as moto_amis

from lab.amis import images
from lab.amis.images import Image
from lab.settings import Lab
from lab.shell import run

# Overlayfs keeps what it knows of a folder in extended attributes.
_TAR = ("tar", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--sparse")
_ENTRY = "kiln-image.json"


class NotStoredError(ValueError):
    """An object is not a stored AMI."""


def packed(lab: Lab, image: Image) -> bytes:
    """An AMI as an object. Raises CommandError."""
    with tempfile.TemporaryDirectory(dir=lab.state) as folder:
        (Path(folder) / _ENTRY).write_text(json.dumps(asdict(image)))
        files = [f"{layer}/layer" for layer in image.layers]
        files += [f"{image.id}/{volume['File']}" for volume in image.volumes if "File" in volume]
        made = Path(folder) / "object"
        run(*_TAR, "-cf", str(made), "-C", folder, _ENTRY, "-C", str(lab.images), *files)
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

    Raises NotStoredError and CommandError.
    """
    with tempfile.TemporaryDirectory(dir=lab.images) as folder:
        object_file, tree = Path(folder) / "object", Path(folder) / "tree"
        object_file.write_bytes(content)
        tree.mkdir()
        if not _is_stored(object_file):
            raise NotStoredError("the object is not an AMI that the lab has stored")
        run(*_TAR, "-xpf", str(object_file), "-C", str(tree))
        image = Image(**json.loads((tree / _ENTRY).read_text()))
        if not Path(image.base).is_dir():
            raise NotStoredError(f"its root filesystem is not there any more: {image.base}")
        ids = {layer: moto_amis.random_ami_id() for layer in image.layers}
        own = ids.setdefault(image.id, moto_amis.random_ami_id())
        for old, new in ids.items():
            if (tree / old).is_dir():
                shutil.move(tree / old, lab.images / new)
    fields = asdict(image) | {"id": own, "layers": [ids[layer] for layer in image.layers]}
    made = Image(**fields)
    images.save(lab, made)
    return made
