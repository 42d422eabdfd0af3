"""A row's folder in Packer's hands alone: it knows the row's `aws` settings."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from devel import packers
from kiln.base.account import Account, SubnetFilter
from kiln.base.paths import packer_dir
from kiln.base.recipe import Recipe
from kiln.matrix.load import load_recipes
from kiln.packer import program, render
from kiln.packer.program import Packer
from kiln.packer.render import recipe_digest, write_folders, write_inputs

COMPANY = Account(
    region="eu-central-1",
    subnet_id="subnet-0123456789ab",
    tags={"team": "ml platform"},
    instance_types=("c7i.4xlarge", "m7i.4xlarge"),
    mirrors={"https://a.example": "https://b.example"},
)


def row(account: Account) -> Recipe:
    recipe = load_recipes()[0]
    return recipe.changed(row=recipe.row.changed(account=account))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KILN_PACKER_DIR", str(tmp_path / "packer"))
    return write_folders([row(COMPANY)], packer_dir())[row(COMPANY).name]


@pytest.mark.parametrize("packer", packers.usable() or [None], ids=str)
def test_packer_reads_the_settings_by_itself(folder: Path, packer: Packer | None) -> None:
    if packer is None:
        pytest.skip("needs Packer: there is none")
    names = ("region", "subnet_id", "tags", "instance_type", "mirrors", "kms_key_id")
    done = subprocess.run(
        program.command(packer, "console", variables=program.EXAMPLE_VARIABLES),
        cwd=folder,
        input=f"jsonencode([{', '.join(f'var.{name}' for name in names)}])\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [
        "eu-central-1",
        "subnet-0123456789ab",
        {"team": "ml platform"},
        "c7i.4xlarge",
        {"https://a.example": "https://b.example"},
        "",
    ]


def test_what_only_the_pipeline_looks_up_is_said(folder: Path) -> None:
    asked = SubnetFilter(filters={"tag:Class": "build"})
    again = row(COMPANY.changed(subnet_id=None, subnet_filter=asked))
    write_folders([again], packer_dir())
    text = (folder / render.SETTINGS).read_text()
    assert "looks up subnet_filter: give Packer its outcome" in text
    assert "subnet_id =" not in text


def test_the_settings_are_of_no_image(tmp_path: Path) -> None:
    assert recipe_digest(row(COMPANY)) == recipe_digest(row(Account()))
    run = write_inputs(render.render(row(COMPANY)), tmp_path)
    assert not list(run.rglob(render.SETTINGS))
