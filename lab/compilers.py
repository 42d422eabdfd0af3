"""The compilers of the guests' tree: unpacked on one core while mmdebstrap installs the rest.

Installing them would take a third of the time that all packages take, on a single core. None of
their packages has to run a script: their files are enough for the al family, whose guests have no
dpkg. For the others, `tree` installs them with apt.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lab import mmdebstrap
from lab.aptsources import Archive

# So that /bin and /lib are links, as in the tree.
_MERGED_USR = "/usr/share/mmdebstrap/hooks/merged-usr"
_TAKEN = ("usr", "etc", "var/lib")
# These are of dpkg, apt and the hook, not of the packages.
_LEFT_OUT = ("usr/lib32", "usr/libx32", "var/lib/apt", "var/lib/dpkg")


def unpack(archive: Archive, arch: str, packages: Sequence[str], folder: Path, log: Path) -> None:
    """Unpack `packages`, and the packages that they need, into `folder`.

    `log` gets mmdebstrap's output. Raises operation_failed when mmdebstrap fails.
    """
    options = [
        "--variant=extract",
        f"--hook-dir={_MERGED_USR}",
        f"--include={','.join(packages)}",
    ]
    mmdebstrap.make(archive, arch, options, folder, log)


def add(unpacked: Path, tree: Path, excluded: Sequence[str]) -> None:
    """Link the files of `unpacked` that `tree` lacks into it, except below `excluded` paths.

    `excluded` are absolute paths that end in /*. Both folders are on one file system.
    """
    excluded_folders = (path.removesuffix("/*").lstrip("/") for path in excluded)
    left_out = {unpacked / path for path in (*_LEFT_OUT, *excluded_folders)}
    for name in _TAKEN:
        for place, folders, files in os.walk(unpacked / name):
            folder = Path(place)
            target = tree / folder.relative_to(unpacked)
            if not target.is_dir():
                target.mkdir()
                target.chmod(folder.stat().st_mode & 0o7777)
            links = [entry for entry in folders if (folder / entry).is_symlink()]
            folders[:] = [entry for entry in folders if folder / entry not in left_out]
            for entry in (*files, *links):
                if not os.path.lexists(target / entry):
                    os.link(folder / entry, target / entry, follow_symlinks=False)
