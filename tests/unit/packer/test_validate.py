"""`validate`: every row rendered, held to the policy, and shown to Packer."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import Finding
from kiln.base.paths import ROOT, packer_dir
from kiln.base.recipe import Recipe
from kiln.cli import matrix as tasks
from kiln.cli.options import Rows
from kiln.matrix import load
from kiln.packer import program, render
from kiln.packer import validate as validation
from kiln.packer.program import Packer
from kiln.packer.render import write_folders, write_inputs

SOURCE = "source.pkr.hcl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The first row's folder, with all that its HCL names."""
    return write_inputs(render.render(load.load_recipes()[0]), tmp_path)


# ------------------------------------------------------------------- the policy

# The rule, and an edit of the source that breaks it.
LAST = r"^  shutdown_behavior"
EDITS = [
    ("imdsv2-required", r'http_tokens( *)= "required"', r'http_tokens\1= "optional"'),
    ("imdsv2-required", r"^  metadata_options \{[^}]*\}\n", ""),
    ("imdsv2-required", r"^ *imds_support.*\n", ""),
    ("root-encrypted", r"encrypted( *)= true", r"encrypted\1= false"),
    ("root-encrypted", r"^ *encrypted .*\n", ""),
    ("root-encrypted", r"^  launch_block_device_mappings \{[^}]*\}\n", ""),
    ("ingress-closed", r"= var.ssh_source_cidrs$", r'= ["0.0.0.0/0"]'),
    # Packer's own default.
    ("ingress-closed", r"^ *temporary_security_group_source_cidrs.*\n", ""),
    ("no-identity", LAST, '  profile = "AKIAABCDEFGHIJKLMNOP"\n  shutdown_behavior'),
    ("no-identity", LAST, "  secret_key = var.region\n  shutdown_behavior"),
    ("not-public", r"force_deregister( *)= false", r"force_deregister\1= true"),
    ("not-public", LAST, '  ami_groups = ["all"]\n  shutdown_behavior'),
]


def broken(folder: Path, pattern: str, by: str, file: str = SOURCE) -> list[Finding]:
    """The findings after one edit, which must have hit something."""
    assert validation.check_policy(folder) == []
    path = folder / file
    text, count = re.subn(pattern, by, path.read_text(), flags=re.MULTILINE)
    assert count, f"{pattern} is not in {file}"
    path.write_text(text)
    return validation.check_policy(folder)


@pytest.mark.parametrize(("rule", "pattern", "by"), EDITS)
def test_source_that_breaks_a_rule_is_found(folder: Path, rule: str, pattern: str, by: str) -> None:
    findings = broken(folder, pattern, by)
    assert rule in {finding.rule for finding in findings}
    assert all(finding.file and finding.line for finding in findings)


def test_source_of_packer_1_6_is_judged_too(folder: Path) -> None:
    findings = broken(folder, r"encrypted( *)= true", "", f"{program.FOLDER_1_6}/{SOURCE}")
    assert [finding.rule for finding in findings] == ["root-encrypted"]


def test_finding_in_shared_hcl_names_the_shared_file(folder: Path) -> None:
    (finding,) = broken(folder, r"encrypted( *)= true", r"encrypted\1= false")
    assert finding.line
    words = (folder / SOURCE).read_text().splitlines()[finding.line - 1].split()
    assert words == ["encrypted", "=", "false"]
    assert finding.file == f"packer/shared/{SOURCE}"


def test_committed_rows_break_no_rule() -> None:
    rows = [ROOT / "packer" / recipe.line for recipe in load.load_recipes()]
    assert [str(f) for row in rows for f in validation.check_policy(row)] == []


# ------------------------------------------------------------------- Packer


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("shutdown_behavior    =", "shut_down_behavior   ="),
        ("throughput            = var", "throughput            = true ? 7 : var"),
    ],
)
def test_packers_findings_are_told_per_row(
    real: Packer, recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    edited(monkeypatch, old, new)
    found = validation.validate_recipes(recipes[:1], real)
    rules = {(f.rule, f.rows) for findings in found.values() for f in findings}
    assert rules == ({("packer-validate", (name,)) for name in found} if old else set())


@pytest.mark.slow
def test_hcl_is_formatted_and_valid_from_any_folder(
    real: Packer, recipes: list[Recipe], tmp_path: Path
) -> None:
    folder = write_inputs(render.render(recipes[0]), tmp_path / "inputs")
    for each in (folder, folder / program.FOLDER_1_6):
        assert subprocess.run([real.path, "fmt", "-check", each], check=False).returncode == 0, each
    template = folder if real.has_plugins else folder / program.FOLDER_1_6
    argv = program.command(real, "validate", variables=program.EXAMPLE_VARIABLES)
    done = subprocess.run(
        [*argv[:-1], str(template)], cwd="/", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------------------------------- the task


@pytest.fixture
def accepting(recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The task validates two rows; Packer accepts all. Line → the folder that it was shown."""
    shown: dict[str, Path] = {}

    def accepts(packer: Packer, folder: Path, *_: object) -> str:
        assert (folder / render.RECIPE).is_file()
        shown[folder.name] = folder
        return ""

    monkeypatch.setattr(load, "load_recipes", lambda: recipes)
    monkeypatch.setattr(program, "find_packer", lambda **_: Packer(Path("/nowhere"), "1.6.6"))
    monkeypatch.setattr(validation, "packer_validate", accepts)
    return shown


@pytest.mark.usefixtures("accepting")
def test_finding_of_all_rows_is_printed_once(
    recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(monkeypatch, "encrypted             = true", "encrypted             = false")
    assert tasks.validate.body.__wrapped__(Rows(), no_install=True) == 2
    shown = capsys.readouterr().out
    assert (shown.count("INVALID"), shown.count("packer/shared/source.pkr.hcl:")) == (2, 1)
    assert f"{recipes[0].name}, {recipes[1].name}" in shown


def test_stale_packer_folder_is_named_and_stays(
    recipes: list[Recipe], accepting: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    edited_file = write_folders(recipes, packer_dir())[recipes[0].name] / render.RECIPE
    edited_file.write_text("not what the matrix says")
    assert tasks.validate.body.__wrapped__(Rows()) == 0
    assert edited_file.read_text() == "not what the matrix says"
    assert f"{os.environ['KILN_PACKER_DIR']}/ is out of date" in capsys.readouterr().err
    assert accepting.keys() == {recipe.line for recipe in recipes}
    assert not any(folder.exists() for folder in accepting.values()), "left behind"
