"""The lab's folders on this machine: closed to other users."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kiln.base.errors import operation_failed
from lab.base.shell import run


def private(root: Path, *below: Path) -> None:
    """Make `root` and folders below it, and close what the lab made to all but their owner.

    A root that was there before with other content is left as it is: `KILN_LAB_STATE` may name any
    folder. Raises operation_failed when a folder belongs to another user, who could change what is
    in it, or is a link.
    """
    if not root.exists():
        root.mkdir(parents=True, mode=0o700, exist_ok=True)  # another lab may be starting too
    for folder in below:
        # mkdir's mode applies to the last folder only.
        for path in (*reversed(folder.relative_to(root).parents), folder.relative_to(root)):
            if path.parts:
                _close(root / path)


def put(made: Path, place: Path) -> None:
    """Rename a folder to its place, after its files are on disk.

    Whoever finds a folder in its place takes it for complete, also after a crash of the machine;
    without this its files would be there, and empty. Raises CommandError.
    """
    run("sync", "--file-system", str(made))
    made.rename(place)


def _close(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise operation_failed(
            f"{folder} is a link, or belongs to another user: a lab cannot be kept there",
            hint="remove it, or set KILN_LAB_STATE to a folder of your own",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        folder.chmod(0o700)
