"""Runs: one per AMI at a time, each with an id, a folder, and what a later run needs of it."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import threading
from pathlib import Path

import pytest

from kiln.base.errors import KilnError
from kiln.cloud import runs
from kiln.cloud.aws_target import AwsTarget
from lab.target import LabTarget

LAB = LabTarget("a test", "us-east-1", endpoint="http://127.0.0.1:4599")
AWS = AwsTarget("a test", "eu-west-1", account="123456789012")
ROW = "al2-510.47.03-cuda11.6-base-x86_64"


@pytest.fixture(autouse=True)
def build_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))
    return tmp_path / "build"


def test_a_run_has_an_id_that_sorts_by_time_and_a_folder_of_its_own(build_dir: Path) -> None:
    with runs.started(ROW, LAB) as run:
        assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{4}", run.id)
        assert run.folder == build_dir / ROW / run.id
        assert run.folder.is_dir()
        assert run.record == run.folder / "record.json"


def test_a_second_run_of_the_same_ami_is_refused_and_names_the_first() -> None:
    with (
        runs.started(ROW, LAB) as first,
        pytest.raises(KilnError, match=f"being built already: run {first.id}, process") as caught,
        runs.started(ROW, LAB),
    ):
        pass
    assert caught.value.exit_status == 1


def test_another_ami_may_be_built_meanwhile_and_the_same_one_afterwards() -> None:
    with runs.started(ROW, LAB), runs.started("al2023-580", LAB):
        pass
    with runs.started(ROW, LAB):
        pass


def test_a_run_that_goes_on_is_not_dead() -> None:
    with runs.started(ROW, LAB):
        assert runs.dead() == []


def test_a_run_that_ended_without_settling_is_dead_and_says_where_it_was() -> None:
    with runs.started(ROW, AWS) as run:
        pass
    (dead,) = runs.dead()
    assert (dead.run_id, dead.target, dead.place) == (run.id, "aws", "123456789012")
    assert dead.region == "eu-west-1"
    assert dead.amis
    assert dead.where == "AWS, account 123456789012, region eu-west-1"


def test_a_dead_run_of_a_lab_says_which_lab() -> None:
    with runs.started(ROW, LAB):
        pass
    assert [dead.where for dead in runs.dead()] == ["the lab at http://127.0.0.1:4599"]


def test_a_run_that_settled_is_forgotten() -> None:
    with runs.started(ROW, LAB) as run:
        run.settled()
    assert runs.dead() == []


def test_a_finished_ami_is_not_half_made() -> None:
    with runs.started(ROW, LAB) as run:
        run.keeps_its_ami()
    assert [dead.amis for dead in runs.dead()] == [False]


def test_an_older_dead_run_is_found_while_a_newer_one_of_the_same_ami_goes_on() -> None:
    with runs.started(ROW, LAB) as older:
        pass
    with runs.started(ROW, LAB):
        assert [dead.run_id for dead in runs.dead()] == [older.id]


def test_a_torn_file_of_a_run_stops_nobody(build_dir: Path) -> None:
    for number, text in enumerate(("", "{", "[]", '{"run_id": "x"}')):
        state = build_dir / ROW / f"run{number}" / "run.json"
        state.parent.mkdir(parents=True)
        state.write_text(text)
    assert runs.dead() == []


def test_somebody_who_only_looks_for_dead_runs_keeps_no_new_one_from_starting(
    build_dir: Path,
) -> None:
    with runs.started(ROW, LAB):
        pass
    lock = (build_dir / ROW / ".lock").open()
    fcntl.flock(lock, fcntl.LOCK_SH)
    threading.Timer(0.15, lock.close).start()
    with runs.started(ROW, LAB):
        pass


def test_the_commit_says_when_tracked_files_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        done = subprocess.run(
            ["git", *who, "-C", str(tmp_path), *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    monkeypatch.setattr(runs, "ROOT", tmp_path)
    assert runs.git_commit() == "unknown"
    git("init", "-q")
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-qm", "first")
    assert runs.git_commit() == git("rev-parse", "HEAD")
    (tmp_path / "untracked").write_text("b")
    assert runs.git_commit() == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("c")
    assert runs.git_commit() == git("rev-parse", "HEAD") + "-dirty"


def test_what_a_run_notes_is_no_secret(build_dir: Path) -> None:
    with runs.started(ROW, AWS) as run:
        assert set(json.loads(run.state.read_text())) == {
            "run_id", "target", "place", "where", "region", "amis"
        }  # fmt: skip
