"""The Packers of this machine: the tests that need Packer run with each of them.

The first is the one that AMI Kiln uses. Others are those on PATH, and the one that
KILN_SECOND_PACKER names. One that loads plugins counts where it finds an amazon plugin that fits.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from functools import cache

from kiln.base.errors import KilnError
from kiln.packer import program
from kiln.packer.program import Packer


@cache
def usable() -> tuple[Packer, ...]:
    """Each version once, the one that AMI Kiln uses first."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = [
        os.environ.get("KILN_PACKER"),
        *(shutil.which("packer", path=folder or os.curdir) for folder in folders),
        os.environ.get("KILN_SECOND_PACKER"),
    ]
    newest: dict[tuple[int, int, int], Packer] = {}
    for path in dict.fromkeys(filter(None, paths)):
        with contextlib.suppress(KilnError), _named(path):
            packer = program.find_packer(install=False)
            newest.setdefault(packer.version, packer)
    return tuple(newest.values())


def in_words() -> str:
    """Name the Packer of a test run, and the others that its tests of Packer run with."""
    first, *others = [str(packer) for packer in usable()] or ["no Packer"]
    also = f"; the tests of its HCL also with {', '.join(others)}" if others else ""
    return f"{first}{also}"


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    before = os.environ.get("KILN_PACKER")
    os.environ["KILN_PACKER"] = path
    try:
        yield
    finally:
        del os.environ["KILN_PACKER"]
        if before is not None:
            os.environ["KILN_PACKER"] = before
