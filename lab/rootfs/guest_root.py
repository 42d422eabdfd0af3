"""Root filesystem of a guest, in a lab whose code may have changed since it was started.

A base is named after a digest of the files on the disk, so a process that runs older code must not
make one: `python -m lab.rootfs.guest_root DISTRO ARCH stand-ins` (or real) does, and prints where.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import ROOT
from lab.base import origin
from lab.rootfs import bases, real_bases
from lab.vendors.kinds import REAL


def finder(kind_of_vendors: str, lock: threading.Lock) -> Callable[[str, str], Path]:
    """Return a function that finds or makes root filesystems, one at a time.

    It raises what `bases.ensure` raises.
    """
    began = origin.started_from()

    def find(distro: str, arch: str) -> Path:
        changed = origin.started_from() != began
        with lock:
            return (_by_new_process if changed else _ensure)(distro, arch, kind_of_vendors)

    return find


def _ensure(distro: str, arch: str, kind_of_vendors: str) -> Path:
    if kind_of_vendors == REAL:
        return real_bases.guest_root(distro, arch)
    return bases.ensure(distro, arch)


def _by_new_process(*words: str) -> Path:
    command = [sys.executable, "-m", "lab.rootfs.guest_root", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise operation_failed(done.stderr.strip())
    return Path(done.stdout)


if __name__ == "__main__":
    try:
        sys.stdout.write(str(_ensure(*sys.argv[1:])))
    except KilnError as error:
        sys.exit(str(error))
