"""Only 0 to 9 are digits: programs that ship take no digits of other scripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kiln.base.paths import RUNTIME
from kiln.base.runtime_import import runtime_module

THREE = "\u0663"  # Arabic


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


def test_a_number_of_lines_in_digits_of_another_script_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        runtime_module("gpu_xid.cli").main(["tail", "-n", THREE])
    assert end.value.code == 2
    assert "is not a number of lines" in capsys.readouterr().err


def test_a_time_of_the_journal_in_digits_of_another_script_is_none() -> None:
    message = runtime_module("gpu_xid.journal").message
    row = {"MESSAGE": "m", "_TRANSPORT": "kernel", "_SOURCE_MONOTONIC_TIMESTAMP": "3"}
    assert message(row)[1] == 3
    assert message({**row, "_SOURCE_MONOTONIC_TIMESTAMP": THREE})[1] is None
