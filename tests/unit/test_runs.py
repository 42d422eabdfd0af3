"""Runs: one per AMI at a time, each with an id, a folder, and what a later run needs of it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

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
    with runs.started(ROW, LAB), runs.started("another", LAB):
        pass
    with runs.started(ROW, LAB):
        pass


def test_a_run_that_goes_on_is_not_dead() -> None:
    with runs.started(ROW, LAB):
        assert runs.dead(print) == []


def test_a_run_that_ended_without_settling_is_dead_and_says_where_it_was() -> None:
    with runs.started(ROW, AWS) as run:
        pass
    (dead,) = runs.dead(print)
    assert (dead.run_id, dead.target, dead.place) == (run.id, "aws", "123456789012")
    assert dead.region == "eu-west-1"
    assert dead.amis
    assert dead.where == "AWS, account 123456789012, region eu-west-1"


def test_a_dead_run_of_a_lab_says_which_lab() -> None:
    with runs.started(ROW, LAB):
        pass
    assert [dead.where for dead in runs.dead(print)] == ["the lab at http://127.0.0.1:4599"]


def test_a_run_that_settled_is_forgotten() -> None:
    with runs.started(ROW, LAB) as run:
        run.settled()
    assert runs.dead(print) == []


def test_a_finished_ami_is_not_half_made() -> None:
    with runs.started(ROW, LAB) as run:
        run.keeps_its_ami()
    assert [dead.amis for dead in runs.dead(print)] == [False]


def test_an_older_dead_run_is_found_while_a_newer_one_of_the_same_ami_goes_on() -> None:
    with runs.started(ROW, LAB) as older:
        pass
    with runs.started(ROW, LAB):
        assert [dead.run_id for dead in runs.dead(print)] == [older.id]


def test_a_torn_file_of_a_run_stops_nobody(build_dir: Path) -> None:
    for number, text in enumerate(("", "{", "[]", '{"run_id": "x"}')):
        state = build_dir / ROW / f"run{number}" / "run.json"
        state.parent.mkdir(parents=True)
        state.write_text(text)
    assert runs.dead(print) == []


def test_who_reads_a_runs_file_while_it_is_written_finds_it_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    write_text = Path.write_text

    def half(path: Path, text: str) -> int:
        write_text(path, text[: len(text) // 2])
        seen.extend(state.read_text() for state in path.parent.glob("run.json"))
        return write_text(path, text)

    with runs.started(ROW, LAB) as run:
        monkeypatch.setattr(Path, "write_text", half)
        run.keeps_its_ami()
    assert [json.loads(text)["amis"] for text in seen] == [True]
    with runs.started(ROW, LAB) as run:
        pass
    assert len(seen) == 1, "a run has no file until it is whole"


def test_somebody_who_looks_for_dead_runs_for_long_keeps_no_new_one_from_starting(
    build_dir: Path,
) -> None:
    with runs.started(ROW, LAB):
        pass
    lock = (build_dir / ROW / ".lock").open()
    fcntl.flock(lock, fcntl.LOCK_SH)
    threading.Timer(1, lock.close).start()
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


def test_what_a_run_notes_is_not_secret(build_dir: Path) -> None:
    with runs.started(ROW, AWS) as run:
        assert set(json.loads(run.state.read_text())) == {
            "run_id", "target", "place", "where", "region", "amis"
        }  # fmt: skip


STATE = {
    "run_id": "20261121T000000Z-aaaa", "target": "aws", "place": "123456789012",
    "where": "AWS", "region": "eu-west-1", "amis": True,
}  # fmt: skip
FORGED: dict[str, tuple[object, str]] = {
    "a wildcard": ({**STATE, "run_id": "*"}, "`run_id` * is not a run id"),
    "another run's id": (
        {**STATE, "run_id": "20261121T000000Z-bbbb"},
        "not the name of its folder",
    ),
    "Arabic digits": ({**STATE, "run_id": "٢٠261121T000000Z-aaaa"}, "is not a run id"),
    "a region": ({**STATE, "region": "x;id"}, "`region` x;id is not a region"),
    "a target": ({**STATE, "target": "moon"}, "`target` moon is not aws or lab"),
    "a place": ({**STATE, "place": "file:///etc"}, "is not an account id or a lab's endpoint"),
    "a place of another type": ({**STATE, "place": 5}, "is not an account id"),
    "amis as text": ({**STATE, "amis": "no"}, "`amis` is not true or false"),
    "where as a list": ({**STATE, "where": []}, "`where` is not text"),
    "a field that is missing": ({"run_id": STATE["run_id"]}, "its fields are wrong: amis, place"),
    "a field that is unknown": ({**STATE, "command": "id"}, "its fields are wrong: command"),
    "a list": ([], "it is not a mapping"),
    "a run id of another type": ({**STATE, "run_id": ["*"]}, "is not a run id"),
}


def state_of(build_dir: Path, text: str) -> Path:
    """A run.json in the folder of STATE's run."""
    folder = build_dir / ROW / str(STATE["run_id"])
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(text)
    return folder / "run.json"


@pytest.mark.parametrize(("state", "reason"), FORGED.values(), ids=FORGED.keys())
def test_a_forged_state_is_refused_with_its_reason(
    build_dir: Path, state: object, reason: str
) -> None:
    path = state_of(build_dir, json.dumps(state))
    refused: list[str] = []
    assert runs.dead(refused.append) == []
    assert len(refused) == 1
    assert refused[0].startswith(str(path))
    assert reason in refused[0]


def test_a_state_that_others_can_write_is_refused(build_dir: Path) -> None:
    path = state_of(build_dir, json.dumps(STATE))
    assert [dead.run_id for dead in runs.dead(print)] == [STATE["run_id"]]
    for mine in (path, path.parent, path.parent.parent):
        mode = mine.stat().st_mode
        mine.chmod(mode | 0o002)
        refused: list[str] = []
        assert runs.dead(refused.append) == []
        assert f"another user can write {mine}" in refused[0]
        mine.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        assert runs.dead(print) == []


@pytest.mark.parametrize(
    ("members", "primary", "accepted"),
    [((), False, True), (("other",), False, False), ((), True, False)],
    ids=["a private group", "another member", "another user's primary group"],
)
def test_a_state_that_its_group_can_write_is_accepted_where_the_owner_is_alone_in_it(
    build_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    members: tuple[str, ...],
    primary: bool,
    accepted: bool,
) -> None:
    path = state_of(build_dir, json.dumps(STATE))
    path.chmod(path.stat().st_mode | 0o020)
    group = path.stat().st_gid
    owner = SimpleNamespace(pw_name="own", pw_gid=group)
    other = SimpleNamespace(pw_name="other", pw_gid=group if primary else group + 1)
    monkeypatch.setattr(runs.pwd, "getpwuid", lambda uid: owner)
    monkeypatch.setattr(runs.pwd, "getpwall", lambda: [owner, other])
    monkeypatch.setattr(runs.grp, "getgrgid", lambda gid: SimpleNamespace(gr_mem=list(members)))
    refused: list[str] = []
    assert bool(runs.dead(refused.append)) == accepted
    assert bool(refused) != accepted


def test_the_folders_of_a_run_are_writable_by_its_user_alone_whatever_the_umask(
    build_dir: Path,
) -> None:
    before = os.umask(0)
    try:
        with runs.started(ROW, LAB) as run:
            for path in (build_dir, run.folder.parent, run.folder):
                assert stat.S_IMODE(path.stat().st_mode) == 0o755
            assert stat.S_IMODE(run.state.stat().st_mode) == 0o644
    finally:
        os.umask(before)
    assert [dead.run_id for dead in runs.dead(print)] == [run.id]


def test_a_recipe_whose_name_is_a_path_gets_no_folder(build_dir: Path) -> None:
    for name in ("../../x", "/etc", "", "a/b", "-x"):
        with (
            pytest.raises(KilnError, match="is not a recipe's name"),
            runs.started(name, LAB),
        ):
            pass
    assert not build_dir.exists()
