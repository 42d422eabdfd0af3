"""docs/first-image.md shows what its commands print. The build is compared in tests/lab."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tasks
from kiln.base.paths import ROOT
from kiln.cli import main
from kiln.compat.engine import unconfirmed_of_row
from kiln.matrix import load
from tests.unit import shown

SHOWN = shown.blocks((ROOT / "docs" / "first-image.md").read_text())
BUILD = "./invoke build --distro al2 --driver 510.47.03"
PRINTED = [
    "./invoke list",
    "./invoke which --instance-type p5.48xlarge",
    "./invoke check",
    f"{BUILD} --dry-run",
]


@pytest.mark.parametrize("command", PRINTED)
def test_command_prints_what_the_page_shows(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path))
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path / "no-lab"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert main.run(command.split(), tasks.ns) == 0
    done = capsys.readouterr()
    assert shown.difference(SHOWN[command], done.err + done.out, any_version=True) == ""


def test_pages_show_the_same_build() -> None:
    assert set(SHOWN) == {*PRINTED, BUILD}
    (recipe,) = [
        recipe
        for recipe in load.load_recipes(ROOT / "amis.yaml")
        if (recipe.distro.id, recipe.driver) == ("al2", "510.47.03")
    ]
    lines = re.findall(r"facts +(\d+) unconfirmed", SHOWN[BUILD])
    assert lines == [str(len(unconfirmed_of_row(recipe)))]
    drawn = subprocess.run(
        [sys.executable, ROOT / "docs" / "images" / "terminal.py", f"$ {BUILD}"],
        input=SHOWN[BUILD], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert drawn.stdout == (ROOT / "docs" / "images" / "build.svg").read_text()
    passed = re.search(r"(\d+) passed", SHOWN[BUILD])
    assert passed and f"{passed[1]} checks passed" in (ROOT / "README.md").read_text()
