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

PAGE = ROOT / "docs" / "first-image.md"
SHOWN = shown.blocks(PAGE.read_text())
BUILD = "./invoke build --distro al2 --driver 510.47.03"


def test_the_page_shows_what_these_commands_print() -> None:
    assert set(SHOWN) == {
        "./invoke list",
        "./invoke which --instance-type p5.48xlarge",
        f"{BUILD} --dry-run",
        BUILD,
    }


@pytest.mark.parametrize("command", [command for command in SHOWN if command != BUILD])
def test_a_command_prints_what_the_page_shows(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path))
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path / "no-lab"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    words = command.split()
    assert main.run(words, tasks.ns) == 0
    done = capsys.readouterr()
    assert shown.difference(SHOWN[command], done.err + done.out, any_version=True) == ""


def test_build_that_is_shown_counts_unconfirmed_facts() -> None:
    (recipe,) = [
        recipe
        for recipe in load.load_recipes(ROOT / "amis.yaml")
        if (recipe.distro.id, recipe.driver) == ("al2", "510.47.03")
    ]
    lines = re.findall(r"facts +(\d+) unconfirmed", SHOWN[BUILD])
    assert lines == [str(len(unconfirmed_of_row(recipe)))]


def test_the_readme_shows_the_same_run() -> None:
    drawn = subprocess.run(
        [sys.executable, ROOT / "docs" / "images" / "terminal.py", f"$ {BUILD}"],
        input=SHOWN[BUILD], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert drawn.stdout == (ROOT / "docs" / "images" / "build.svg").read_text()
    passed = re.search(r"(\d+) passed", SHOWN[BUILD])
    assert passed and f"{passed[1]} checks passed" in (ROOT / "README.md").read_text()


def test_a_page_may_show_the_versions_of_an_earlier_day_and_no_other_word() -> None:
    page, printed = "1. al2-580.178.04  cuda13.0\n", " 2. al2-580.181.02-x  cuda13.0\n"
    assert shown.difference(page, printed.replace("-x", ""), any_version=True) == ""
    assert shown.difference(page, printed.replace("-x", "")) != ""
    assert shown.difference(page, printed, any_version=True) != ""


def test_a_line_that_is_not_printed_is_found() -> None:
    printed = "a 1.2 s\nb\nc\nd ami-0123456789abcdef0\n"
    assert shown.difference("a   7.0 s\n…\nd ami-11111111111111111\n", printed) == ""
    assert "'x'" in shown.difference("a 1.0 s\nx\n…\n", printed)
    assert "'c'" in shown.difference("a 1.0 s\nc\n…\n", printed)
    assert "at the end" in shown.difference("a 1.0 s\n", printed)
