"""`./invoke render` says what it did, `--summary` what a change makes of each AMI."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from invoke import Context

from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.cli.packer import render as render_task
from kiln.matrix import load
from kiln.matrix.load import load_recipes
from kiln.packer import layout, render, summary
from kiln.packer.folders import write_all
from kiln.packer.staleness import renewal
from kiln.packer.summary import changes, summary_lines
from tests.unit import commands

ROWS = {row.line: row for row in load_recipes(ROOT / "amis.yaml")}
BASE, ARM64 = ROWS["al2023-lts-base-x86_64"], ROWS["al2023-lts-base-arm64"]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with packer/ of two rows, committed, and a provisioner."""
    monkeypatch.setenv("KILN_PACKER_DIR", str(tmp_path / "packer"))
    (tmp_path / "provisioners").mkdir()
    (tmp_path / "provisioners/cuda.sh").write_text("true\n")
    write_all([BASE, ARM64])
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for call in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *call], check=True)
    return tmp_path


NEWER = "580.999.01"


def moved(row: Recipe, driver: str) -> Recipe:
    return replace(row, driver=driver, name=row.name.replace(row.driver, driver))


def test_a_driver_bump_is_a_line_per_ami_with_what_follows(repository: Path) -> None:
    rows = [moved(row, NEWER) for row in (BASE, ARM64)]
    bump = f"driver {BASE.driver} → {NEWER}"
    assert summary_lines(changes(rows, "HEAD")) == [
        f"al2023 lts base: {bump}, nvidia-fabricmanager follows",
        f"al2023 lts base arm64: {bump}",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_is_told_the_changes_of_a_checkout_that_another_user_owns(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that the checkout is mounted into."""
    monkeypatch.setattr(summary, "ROOT", repository)
    for path in (repository, repository / ".git"):
        os.chown(path, 65534, 65534)
    assert summary_lines(changes([BASE], "HEAD")) == ["al2023 lts base arm64: removed"]


def test_a_driver_bump_changes_a_rows_folder_in_place(repository: Path) -> None:
    done = write_all([moved(BASE, NEWER), ARM64])
    files = f"files/etc/kiln/recipe.json, {render.RECIPE}"
    assert done == [f"wrote    {repository}/packer/{BASE.line}: {files}"]
    assert write_all([moved(BASE, NEWER), ARM64]) == []


def test_a_row_that_comes_and_one_that_goes(repository: Path) -> None:
    eks = ROWS["al2023-lts-eks-x86_64"]
    assert summary_lines(changes([BASE, eks], "HEAD")) == [
        f"al2023 lts eks: new, driver {eks.driver}",
        "al2023 lts base arm64: removed",
    ]
    assert write_all([BASE, eks]) == [
        f"wrote    {repository}/packer/{eks.line}: "
        f"{len(layout.LINKS) + len(render.render_files(eks))} files",
        f"removed  {repository}/packer/{ARM64.line}",
    ]


def test_a_row_whose_line_is_renamed_has_moved(repository: Path) -> None:
    renamed = replace(BASE, line="al2023-lts-2-base-x86_64")
    assert write_all([renamed, ARM64]) == [
        f"moved    {repository}/packer/{BASE.line} → {repository}/packer/{renamed.line}"
    ]


def test_a_component_that_goes_takes_its_packages_and_files_with_it(repository: Path) -> None:
    left = tuple(name for name in BASE.components if name not in ("nccl", "tuning"))
    (line,) = summary_lines(changes([replace(BASE, components=left), ARM64], "HEAD"))
    differences = line.removeprefix("al2023 lts base: ").split(", ")
    assert {"- nccl", "- tuning", "- libnccl", "/etc/sysctl.d/60-kiln.conf gone"} <= set(
        differences
    )


def test_a_changed_provisioner_is_named_for_each_ami_that_runs_it(repository: Path) -> None:
    (repository / "provisioners/cuda.sh").write_text("false\n")
    assert summary_lines(changes([BASE, ARM64], "HEAD")) == [
        "al2023 lts base: cuda.sh changed",
        "al2023 lts base arm64: cuda.sh changed",
    ]


def test_nothing_changed_is_said(repository: Path) -> None:
    assert summary_lines(changes([BASE, ARM64], "HEAD")) == []


def test_a_commit_that_git_does_not_know_is_bad_input(repository: Path) -> None:
    with pytest.raises(KilnError, match=f"git knows no {repository}/packer/ at nowhere"):
        changes([BASE], "nowhere")


@pytest.mark.parametrize("name", [render.RECIPE, render.RECIPE_JSON])
def test_a_commit_with_an_unfinished_merge_is_bad_input(repository: Path, name: str) -> None:
    file = repository / "packer" / BASE.line / name
    file.write_text(f"<<<<<<< HEAD\n{file.read_text()}")
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", "-C", str(repository), *author, "commit", "-qam", "merged"], check=True)
    with pytest.raises(KilnError, match=rf"/{BASE.line} at HEAD cannot be read: ") as refused:
        changes([BASE, ARM64], "HEAD")
    assert refused.value.exit_status == 2


def test_the_command_line_prints_the_summary(tmp_path: Path) -> None:
    matrix = tmp_path / "amis.yaml"
    matrix.write_text((ROOT / "amis.yaml").read_text().replace(BASE.driver, NEWER))
    env = {**os.environ, "KILN_MATRIX": str(matrix)}
    done = commands.invoke("render", "--summary", env=env)
    assert done.returncode == 0, done.stderr
    # The other version is that of git's HEAD, from which this checkout may differ in more.
    assert re.search(rf"^debian12 lts base: .*\bdriver [\d.]+ → {NEWER}", done.stdout, re.M)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"check": True, "summary": True}, "--check and --summary exclude each other"),
        ({"against": "HEAD~1"}, "--against says what --summary compares with"),
        ({"against": "HEAD~1", "check": True}, "--against says what --summary compares with"),
    ],
)
def test_flags_that_do_not_go_together_are_refused_and_nothing_is_written(
    repository: Path, flags: dict[str, object], message: str
) -> None:
    before = sorted(repository.rglob("*"))
    with pytest.raises(KilnError, match=message):
        render_task.body.__wrapped__(Context(), **flags)
    assert sorted(repository.rglob("*")) == before


def test_with_json_the_summary_is_data(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load, "load_recipes", lambda: [moved(BASE, NEWER), ARM64])
    assert render_task.body.__wrapped__(Context(), summary=True, json=True) == 0
    assert json.loads(capsys.readouterr().out) == {
        "against": "HEAD",
        "amis": 2,
        "changes": {
            "al2023 lts base": [
                f"driver {BASE.driver} → {NEWER}",
                "nvidia-fabricmanager follows",
            ]
        },
    }


def test_with_json_a_stale_folder_is_data_and_exit_status_1(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load, "load_recipes", lambda: [BASE, ARM64])
    assert render_task.body.__wrapped__(Context(), check=True, json=True) == 0
    assert json.loads(capsys.readouterr().out) == {"amis": 2, "stale": []}
    (repository / "packer" / BASE.line / render.RECIPE).unlink()
    assert render_task.body.__wrapped__(Context(), check=True, json=True) == 1
    missing = f"{repository}/packer/{BASE.line}/{render.RECIPE}: missing"
    assert json.loads(capsys.readouterr().out) == {"amis": 2, "stale": [missing]}


def test_a_stale_folder_is_an_error_that_names_the_command_for_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "load_recipes", lambda: [BASE, ARM64])
    (repository / "packer" / BASE.line / render.RECIPE).unlink()
    with pytest.raises(KilnError, match=f"^{repository}/packer/ is stale") as error:
        render_task.body.__wrapped__(Context(), check=True)
    assert error.value.hint == "run ./invoke render, and commit"
    monkeypatch.setenv("KILN_PACKER_DIR", str(ROOT / "packer"))
    monkeypatch.setattr(load, "load_recipes", lambda: [moved(BASE, NEWER)])
    with pytest.raises(KilnError, match=r"^packer/ is stale") as error:
        render_task.body.__wrapped__(Context(), check=True)
    assert error.value.hint == "run ./invoke generate, and commit"


@pytest.mark.parametrize("variable", ["KILN_PACKER_DIR", "KILN_MATRIX", "KILN_OVERLAY"])
def test_what_a_team_keeps_elsewhere_is_rendered_and_only_the_checkouts_own_is_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """generate also writes what else is made of the checkout's matrix, such as docs/proven.md."""
    for name in ("KILN_PACKER_DIR", "KILN_MATRIX", "KILN_OVERLAY"):
        monkeypatch.delenv(name, raising=False)
    assert renewal() == "./invoke generate"
    monkeypatch.setenv(variable, str(tmp_path))
    assert renewal() == "./invoke render"
