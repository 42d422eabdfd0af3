"""AMIs of volumes that a guest has written: the file system on one becomes an AMI's layer.

Packer's amazon-ebssurrogate and every image builder that begins with an empty disk make AMIs so.
"""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path

from lab.sandbox import mounting
from lab.settings import Lab
from lab.shell import CommandError
from lab.storage import loops


def copy_root(lab: Lab, disk: Path, layer: Path) -> None:
    """Copy the root file system of a disk, or of its partition that has one, into a folder.

    The folder stays empty when there is none: as on EC2 the AMI is made and does not boot. A
    partition for /boot is not read, because guests boot no kernel of their own.
    Raises CommandError and loops.NoLoopDeviceError.
    """
    layer.mkdir(parents=True, exist_ok=True)
    loop = loops.open_file(disk, lab.state)
    try:
        loop.read_partitions()
        numbers = [f"{major}:{minor}" for major, minor in loop.nodes().values()]
        done = subprocess.run(
            [sys.executable, "-I", mounting.__file__, "copy", str(layer), *numbers],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        loop.close()
    if done.returncode not in (0, errno.ENOENT):
        raise CommandError(f"{disk.name} cannot be copied: {done.stderr.strip()}")


def below(lab: Lab) -> Path:
    """The empty folder that is below the layer of such an AMI."""
    made = lab.state / "empty"
    made.mkdir(mode=0o755, exist_ok=True)
    return made


def distribution(layer: Path) -> str:
    """What its os-release says it is, in the lab's words: debian12, al2023. Empty when unknown."""
    for place in ("usr/lib/os-release", "etc/os-release"):
        file = layer / place
        if file.is_file() and not file.is_symlink():
            text = file.read_text(errors="replace")
            fields: dict[str, str] = dict(
                re.findall(r'^(ID|VERSION_ID)="?([\w.]+)"?$', text, re.MULTILINE)
            )
            name = {"amzn": "al"}.get(fields.get("ID", ""), fields.get("ID", ""))
            return name + fields.get("VERSION_ID", "").replace(".", "")
    return ""
