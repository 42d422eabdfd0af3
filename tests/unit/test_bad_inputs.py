"""Bad input from a user: one message, its exit status, no traceback, no control character."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit import bad_inputs

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("name", bad_inputs.rows())
def test_bad_input_ends_with_its_message(name: str, tmp_path: Path) -> None:
    row = bad_inputs.rows()[name]
    done = bad_inputs.run(row, tmp_path)
    output = done.stdout + done.stderr
    assert "Traceback" not in output
    assert done.returncode == row.get("exit", 2), output
    assert row.get("says", "") in output.replace(str(tmp_path), "{folder}")
    assert not CONTROL.search(output)


def test_good_matrix_is_listed(tmp_path: Path) -> None:
    done = bad_inputs.run({"command": "list"}, tmp_path)
    assert done.returncode == 0, done.stderr
