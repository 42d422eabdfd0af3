"""`validate`: every row rendered, held to the policy, and shown to Packer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from devel import packers
from kiln.base.paths import packer_dir
from kiln.base.recipe import Recipe
from kiln.cli import matrix as tasks
from kiln.matrix import load
from kiln.packer import program, render
from kiln.packer import validate as validation
from kiln.packer.program import Packer
from kiln.packer.render import write_folders, write_inputs
from kiln.packer.validate import validate_recipes


@pytest.fixture(params=packers.usable() or [None], ids=str)
def real(request: pytest.FixtureRequest) -> Packer:
    if request.param is None:
        pytest.skip("needs Packer: there is none")
    found: Packer = request.param
    return found


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """Two rows, rendered where nobody else renders."""
    monkeypatch.setenv("KILN_PACKER_DIR", str(tmp_path / "packer"))
    return load.load_recipes()[:2]


def edited(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Let what is rendered differ, as if the template did."""
    real = render.shared_files

    def other(*given: Any, **how: Any) -> dict[str, str]:
        files = real(*given, **how)
        assert any(old in text for text in files.values())
        return {path: text.replace(old, new) for path, text in files.items()}

    monkeypatch.setattr(render, "shared_files", other)


def test_the_matrix_is_valid(real: Packer, recipes: list[Recipe]) -> None:
    assert validate_recipes(recipes, real) == {recipe.name: [] for recipe in recipes}


def told_per_row(recipes: list[Recipe], packer: Packer) -> set[str]:
    """The rules of the findings, each about one row."""
    rules = set()
    for name, findings in validate_recipes(recipes, packer).items():
        assert {finding.rows for finding in findings} == {(name,)}
        rules |= {finding.rule for finding in findings}
    return rules


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("shutdown_behavior    =", "shut_down_behavior   ="),
        ("throughput            = var", "throughput            = true ? 7 : var"),
    ],
)
def test_what_packer_finds_is_told_per_row(
    real: Packer, recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    edited(monkeypatch, old, new)
    assert told_per_row(recipes, real) == {"packer-validate"}


def test_hcl_is_formatted_as_packer_does(
    real: Packer, recipes: list[Recipe], tmp_path: Path
) -> None:
    folder = write_folders(recipes[:1], tmp_path)[recipes[0].name]
    for row in (folder, folder / program.FOLDER_1_6):
        for file in row.glob("*.pkr.hcl"):
            done = subprocess.run([real.path, "fmt", "-check", file.resolve()], check=False)
            assert done.returncode == 0, file


def test_it_is_valid_from_any_directory(
    real: Packer, recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_inputs(render.render(recipes[0]), Path(os.environ["KILN_PACKER_DIR"]).parent)
    template = folder if real.has_plugins else folder / program.FOLDER_1_6
    argv = program.command(real, "validate", variables=program.EXAMPLE_VARIABLES)
    done = subprocess.run(
        [*argv[:-1], str(template)], cwd="/", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def accepting(recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The task validates two rows; Packer accepts all. Line → the folder that it was shown."""
    shown: dict[str, Path] = {}

    def accepts(packer: Packer, folder: Path, *_: object) -> str:
        assert (folder / render.RECIPE).is_file()
        shown[folder.name] = folder
        return ""

    monkeypatch.setattr(load, "load_recipes", lambda: recipes)
    monkeypatch.setattr(program, "find_packer", lambda **_: Packer(Path("/nowhere"), (1, 6, 6)))
    monkeypatch.setattr(validation, "packer_validate", accepts)
    return shown


@pytest.mark.usefixtures("accepting")
def test_what_is_wrong_in_all_rows_is_said_once_with_the_rows(
    recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(monkeypatch, "encrypted             = true", "encrypted             = false")
    assert tasks.validate.body.__wrapped__(no_install=True) == 2
    shown = capsys.readouterr().out
    assert shown.count("INVALID") == 2
    assert shown.count("packer/shared/source.pkr.hcl:") == 1
    assert f"{recipes[0].name}, {recipes[1].name}" in shown


def test_a_stale_packer_folder_is_named_and_left_as_it_is(
    recipes: list[Recipe], accepting: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    committed = write_folders(recipes, packer_dir())
    edited_file = committed[recipes[0].name] / render.RECIPE
    edited_file.write_text("not what the matrix says")
    assert tasks.validate.body.__wrapped__() == 0
    assert edited_file.read_text() == "not what the matrix says"
    assert capsys.readouterr().err == (
        f"{os.environ['KILN_PACKER_DIR']}/ is stale, and was not judged: ./invoke render brings it "
        "up to date\n"
    )
    assert accepting.keys() == {recipe.line for recipe in recipes}
    assert not any(folder.exists() for folder in accepting.values()), "left behind"
