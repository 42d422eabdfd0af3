"""Runs: one per AMI at a time, each with an id, a folder, what a later run needs of it, and a watch
that ends it when EC2 refuses to answer."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from kiln.base.errors import KilnError
from kiln.base.processes import Stop
from kiln.cloud import aws, runs
from kiln.cloud.target import Target
from lab.target import LabTarget

LAB = LabTarget("a test", endpoint="http://127.0.0.1:4599")
AWS = Target("a test", "eu-west-1", account="123456789012")
ROW = "al2-510.47.03-cuda11.6-base-x86_64"


@pytest.fixture(autouse=True)
def build_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))
    return tmp_path / "build"


def dead() -> list[runs.State]:
    return [state for _, state in runs.dead(print)]


@pytest.mark.parametrize(
    ("target", "kind", "place", "where"),
    [
        (AWS, "aws", "123456789012", "AWS, account 123456789012, region eu-west-1"),
        (LAB, "lab", "http://127.0.0.1:4599", "the lab at http://127.0.0.1:4599"),
    ],
)
def test_unsettled_run_is_dead(
    target: Target, kind: str, place: str, where: str, build_dir: Path
) -> None:
    with runs.started(ROW, target) as run:
        assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{4}", run.id)
        assert run.folder == build_dir / ROW / run.id
        assert run.folder.is_dir()
        assert dead() == []
    found = {"run_id": run.id, "target": kind, "place": place, "where": where}
    state = runs.State(**found, region=target.region, amis=True)
    with runs.started(ROW, target) as newer:
        assert dead() == [state]
        newer.mark_clean()
    assert dead() == [state]


def test_second_run_is_refused_and_names_the_first() -> None:
    with (
        runs.started(ROW, LAB) as first,
        pytest.raises(KilnError, match=f"being built already: run {first.id}, process") as caught,
        runs.started(ROW, LAB),
    ):
        pass
    assert caught.value.exit_status == 1
    with runs.started(ROW, LAB), runs.started("another", LAB):
        pass


def test_finished_ami_is_kept_from_later_cleanup(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    write_text = Path.write_text

    def half(path: Path, text: str) -> int:
        write_text(path, text[: len(text) // 2])
        seen.extend(state.read_text() for state in path.parent.glob("run.json"))
        return write_text(path, text)

    with runs.started(ROW, LAB) as run:
        monkeypatch.setattr(Path, "write_text", half)
        run.keep_amis()
    assert [state.amis for state in dead()] == [False]
    assert [json.loads(text)["amis"] for text in seen] == [True], "the file was never half written"


STATE = {
    "run_id": "20261121T000000Z-aaaa", "target": "aws", "place": "123456789012",
    "where": "AWS", "region": "eu-west-1", "amis": True,
}  # fmt: skip


def state_file(build_dir: Path, text: str) -> Path:
    """A run.json in the folder of STATE's run."""
    folder = build_dir / ROW / str(STATE["run_id"])
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(text)
    return folder / "run.json"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps({**STATE, "run_id": "*"}), "`run_id`: "),
        (json.dumps({**STATE, "run_id": "20261121T000000Z-bbbb"}), "not the name of its folder"),
        (json.dumps({**STATE, "region": "x;id"}), "`region`: "),
        (json.dumps({**STATE, "target": "moon"}), "`target`: "),
        (json.dumps({**STATE, "place": "file:///etc"}), "not an account id or a lab's endpoint"),
        (json.dumps({**STATE, "amis": "no"}), "`amis`: "),
        ("{", "`the whole text`: "),
    ],
)
def test_forged_or_torn_state_removes_nothing(build_dir: Path, text: str, reason: str) -> None:
    path = state_file(build_dir, text)
    refused: list[str] = []
    assert runs.dead(refused.append) == []
    assert refused[0].startswith(str(path))
    assert reason in refused[0]
    assert refused[0].endswith("; nothing is removed for it")


def test_state_that_others_can_write_is_refused(build_dir: Path) -> None:
    path = state_file(build_dir, json.dumps(STATE))
    assert [state.run_id for state in dead()] == [STATE["run_id"]]
    for own in (path, path.parent, path.parent.parent):
        mode = own.stat().st_mode
        own.chmod(mode | 0o020)
        refused: list[str] = []
        assert runs.dead(refused.append) == []
        assert f"another user can write {own}" in refused[0]
        own.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        assert dead() == []


class Ec2:
    """Answers DescribeInstances with each of `answers` in turn, the last again and again."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.asked = threading.Semaphore(0)

    def describe_instances(self, **query: Any) -> dict[str, Any]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.asked.release()
        if answer:
            raise answer
        return {}


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "DescribeInstances")


def watched(monkeypatch: pytest.MonkeyPatch, ec2: Ec2, questions: int) -> Stop:
    """The Stop of a run that asked this EC2 so many questions."""
    monkeypatch.setattr(aws, "ec2", lambda target: ec2)
    stop = Stop()
    with runs.watching("run", AWS, stop, every=0.001):
        for _ in range(questions):
            assert ec2.asked.acquire(timeout=60) or stop.is_set()
    return stop


def is_given_up(stop: Stop) -> bool:
    """Whether the watcher gave up; it notes that right after its question was answered."""
    for _ in range(600):
        if stop.is_given_up:
            return True
        threading.Event().wait(0.1)
    return False


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "RequestExpired", "AuthFailure"])
def test_refusal_that_stays_ends_the_run(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    stop = watched(monkeypatch, Ec2(refused(code)), 2)
    assert is_given_up(stop)
    assert stop.grace <= 10
    with pytest.raises(KilnError, match=f"DescribeInstances answered {code}: no") as error:
        stop.check()
    assert error.value.exit_status == 1


@pytest.mark.parametrize(
    "answers",
    [
        (None,),
        (refused("RequestLimitExceeded"),),
        (EndpointConnectionError(endpoint_url="x"),),
        (refused("AuthFailure"), None, refused("AuthFailure"), None),
    ],
    ids=["answer", "throttled", "no network", "now and then"],
)
def test_error_that_may_pass_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[Exception | None, ...]
) -> None:
    assert not watched(monkeypatch, Ec2(*answers), 6).is_set()
