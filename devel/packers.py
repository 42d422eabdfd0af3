"""The Packers of this machine: the tests that need Packer run with each of them.

The first is the one that AMI Kiln uses. Others are those on PATH, and the one that
KILN_SECOND_PACKER names. One that loads plugins counts where it finds an amazon plugin that fits.
"""

from __future__ import annotations

import contextlib
import os
from functools import cache
from unittest.mock import patch

from kiln.base.errors import KilnError
from kiln.cli.output import log
from kiln.packer import program
from kiln.packer.program import Packer


def ensure(*, install: bool = True) -> None:
    """Have the Packer that AMI Kiln uses; if it was fetched, name it to the tests."""
    packer = program.find_packer(install=install, say=log)
    if packer.plugin_folder:
        os.environ["KILN_PACKER"] = str(packer.path)
        os.environ["PACKER_PLUGIN_PATH"] = str(packer.plugin_folder)


@cache
def usable() -> tuple[Packer, ...]:
    """Each version once, the one that AMI Kiln uses first."""
    named = [os.environ.get(name) for name in ("KILN_PACKER", "KILN_SECOND_PACKER")]
    paths = [named[0], *map(str, program.on_path("packer")), named[1]]
    newest: dict[str, Packer] = {}
    for path in dict.fromkeys(filter(None, paths)):
        with contextlib.suppress(KilnError), patch.dict(os.environ, {"KILN_PACKER": path}):
            packer = program.find_packer(install=False)
            newest.setdefault(packer.version, packer)
    return tuple(newest.values())


def in_words() -> str:
    """Name the Packer of a test run, and the others that its tests of Packer run with."""
    first, *others = [str(packer) for packer in usable()] or ["no Packer"]
    also = f"; the tests of its HCL also with {', '.join(others)}" if others else ""
    return f"{first}{also}"
