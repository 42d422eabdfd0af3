"""Only 0 to 9 are digits: programs that ship take no digits of other scripts."""

from __future__ import annotations

import re
from pathlib import Path

from kiln.base.paths import RUNTIME


def programs() -> list[Path]:
    """Every Python program of runtime/, those without a suffix too."""
    return [
        path
        for path in RUNTIME.rglob("*")
        if "__pycache__" not in path.parts  # other processes are writing it
        and path.is_file()
        and (path.suffix == ".py" or path.read_bytes()[:40].startswith(b"#!/usr/bin/python3"))
    ]


def test_no_pattern_of_a_program_that_ships_takes_the_digits_of_other_scripts() -> None:
    found = programs()
    assert len(found) > 40
    guilty = {path for path in found if r"\d" in re.sub(r"(?m)#.*$", "", path.read_text())}
    assert guilty == set()
