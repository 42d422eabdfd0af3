"""What docs/provisioners.md says of `set -e` is what bash does, with the library sourced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_provisioners import Machine

from kiln.base.paths import ROOT

(SECTION,) = re.findall(
    r"^## Where `set -e` does not help\n(.*?)^## ",
    (ROOT / "docs" / "provisioners.md").read_text(),
    re.MULTILINE | re.DOTALL,
)
# A `|` in a cell is written \|.
ROWS = re.findall(r"^\| `(.*?)` \| .* \| `(.*)` \|$", SECTION.replace(r"\|", "¦"), re.MULTILINE)
PAIRS = [(wrong.replace("¦", "|"), right.replace("¦", "|")) for wrong, right in ROWS]
LOST, ENDED = PAIRS[:7], PAIRS[7:]
STEP = re.findall(r"`(step\(\) \{.*?\})`", SECTION)[0]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def goes_on(machine: Machine, code: str) -> bool:
    done = machine.bash(f"{STEP}\n{code}\necho went on")
    assert "syntax error" not in done.stderr
    assert (done.returncode == 0) == ("went on" in done.stdout)
    return done.returncode == 0


def test_the_page_has_both_kinds() -> None:
    assert (len(LOST), len(ENDED)) == (7, 3)


@pytest.mark.parametrize(("wrong", "right"), LOST, ids=[wrong for wrong, _ in LOST])
def test_the_script_goes_on_after_the_failure_and_ends_as_the_page_writes_it(
    machine: Machine, wrong: str, right: str
) -> None:
    assert goes_on(machine, wrong)
    assert not goes_on(machine, right)


@pytest.mark.parametrize(("wrong", "right"), ENDED, ids=[wrong for wrong, _ in ENDED])
def test_a_no_ends_the_script_and_does_not_as_the_page_writes_it(
    machine: Machine, wrong: str, right: str
) -> None:
    assert not goes_on(machine, wrong)
    assert goes_on(machine, right)
