"""`./invoke generate` writes everything generated that is committed, and can only compare it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from devel import generate
from kiln.base.paths import ROOT
from kiln.matrix import load

pytestmark = pytest.mark.slow


def one_row() -> str:
    """The matrix with the first of its rows only."""
    recipe = load.load_recipes()[0]
    matrix = yaml.safe_load((ROOT / "amis.yaml").read_text())
    matrix["amis"] = [{"distro": recipe.distro.id, "stack": recipe.stack}]
    return yaml.safe_dump(matrix, sort_keys=False)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One generated file, made in a folder of its own from a text that a test may change, and one
    row of the matrix."""
    (tmp_path / "amis.yaml").write_text(one_row())
    monkeypatch.setattr(generate, "_MATRIX", tmp_path / "amis.yaml")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setenv("KILN_PACKER_DIR", str(tmp_path / "packer"))
    monkeypatch.setattr(generate, "TEXTS", {tmp_path / "a.json": (lambda: "new\n", "kiln/x.yaml")})
    generate.write()
    return tmp_path / "a.json"


def test_stale_file_is_named_and_written(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.generate(check_only=True) == 0
    elsewhere.write_text("old\n")
    assert generate.generate(check_only=True) == 1
    assert "a.json: differs from kiln/x.yaml\nrun: ./invoke generate" in capsys.readouterr().out
    assert elsewhere.read_text() == "old\n", "comparing writes nothing"
    elsewhere.unlink()
    assert generate.stale()
    assert generate.write() == ["a.json"]
    assert elsewhere.read_text() == "new\n"
    assert generate.generate(check_only=False) == generate.generate(check_only=True) == 0


def test_users_matrix_changes_no_committed_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would delete the folder of each row that the user's matrix lacks."""
    (tmp_path / "amis.yaml").write_text(one_row())
    monkeypatch.setenv("KILN_MATRIX", str(tmp_path / "amis.yaml"))
    assert generate.stale() == []
