"""A run that was killed between its verdict and its record: the AMI's tags complete the record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from records import a_record

from kiln.base.errors import KilnError
from kiln.base.tags import RUN_ID, VERIFIED
from kiln.cloud import aws, runs
from kiln.cloud.aws_target import AwsTarget
from kiln.cloud.runs import DeadRun, Run
from kiln.pipeline import kept_records, record, repair

TARGET = AwsTarget("test", "us-east-1")
ID = "20260101T000000Z-abcd"


@pytest.fixture
def dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeadRun:
    """A killed build whose record has no verdict yet."""
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path))
    folder = tmp_path / "row" / ID
    folder.mkdir(parents=True)
    state = {"run_id": ID, "target": "aws", "place": None, "region": "us-east-1", "amis": True}
    (folder / "run.json").write_text(json.dumps(state))
    record.write_record(
        Run(ID, "row", folder),
        a_record(run_id=ID, status="unverified", ami_id="ami-0123456789abcdef0"),
    )
    (found,) = runs.dead(print)
    return found


def tagged(monkeypatch: pytest.MonkeyPatch, **tags: str) -> None:
    answer: dict[str, Any] = {"tags": {RUN_ID: tags.get("run_id", ID)}}
    if "verdict" in tags:
        answer["tags"][VERIFIED] = tags["verdict"]
    monkeypatch.setattr(repair.verdict, "look_up", lambda target, ami: answer)


@pytest.mark.parametrize(("word", "status"), [("pass", "verified"), ("fail", "failed")])
def test_the_next_build_completes_the_record_from_the_tag(
    dead: DeadRun, monkeypatch: pytest.MonkeyPatch, word: str, status: str
) -> None:
    tagged(monkeypatch, verdict=f"{word} 2026-01-01T00:10:00Z abc")
    done = repair.settle(dead, TARGET)
    assert done is not None
    assert done.status == status
    assert record.read_record(dead.state.parent / "record.json").status == status
    assert (dead.state.parent / "report.html").exists()


def test_list_does_so_too(dead: DeadRun, monkeypatch: pytest.MonkeyPatch) -> None:
    tagged(monkeypatch, verdict="pass 2026-01-01T00:10:00Z abc")
    monkeypatch.setattr(AwsTarget, "identified", lambda self: self)
    repair.settle_here(lambda found: TARGET)
    last = kept_records.last("row")
    assert last is not None
    assert last.status == "verified"


def test_an_ami_without_a_verdict_or_of_another_run_stays_to_be_removed(
    dead: DeadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagged(monkeypatch)
    assert repair.settle(dead, TARGET) is None
    tagged(monkeypatch, verdict="pass 2026-01-01T00:10:00Z abc", run_id=f"{ID[:-1]}e")
    assert repair.settle(dead, TARGET) is None
    assert record.read_record(dead.state.parent / "record.json").status == "unverified"


@pytest.fixture
def dead_verify(dead: DeadRun) -> DeadRun:
    """A `verify` that was killed when it had written its record and was tagging the AMI."""
    verification = a_record(
        run_id=ID,
        kind="verify",
        status="unverified",
        ami_id="ami-0123456789abcdef0",
        started="2026-01-01T00:05:00Z",
        finished="2026-01-01T00:06:00Z",
        git_commit="c0ffee0",
    )
    record.write_record(Run(ID, "row", dead.state.parent), verification)
    return dead


def test_a_verify_that_tagged_the_ami_gets_its_verdict(
    dead_verify: DeadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagged(monkeypatch, verdict="fail 2026-01-01T00:06:00Z c0ffee0", run_id="another")
    done = repair.settle(dead_verify, TARGET)
    assert done is not None
    assert done.status == "failed"


@pytest.mark.parametrize(
    "verdict",
    [
        pytest.param("pass 2026-01-01T00:04:59Z c0ffee0", id="an older one"),
        pytest.param("fail 2026-01-01T00:09:00Z c0ffee0", id="another machine's later one"),
        pytest.param("fail 2026-01-01T00:06:00Z def", id="another commit's"),
    ],
)
def test_a_verify_does_not_take_a_verdict_that_it_did_not_give(
    dead_verify: DeadRun, monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    tagged(monkeypatch, verdict=verdict, run_id="another")
    assert repair.settle(dead_verify, TARGET) is None
    path = dead_verify.state.parent / "record.json"
    assert record.read_record(path).status == "unverified"


def test_a_verify_that_had_noted_its_verdict_keeps_it(
    dead_verify: DeadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dead_verify.state.parent / "record.json"
    noted = replace(record.read_record(path), status="verified")
    record.write_record(Run(ID, "row", path.parent), noted)
    tagged(monkeypatch, verdict="fail 2026-01-01T00:09:00Z def", run_id="another")
    assert repair.settle(dead_verify, TARGET) == noted
    assert record.read_record(path) == noted


def answering(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """EC2 refuses DescribeImages with this code."""
    client = boto3.client("ec2", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    stubber = Stubber(client)
    stubber.add_client_error("describe_images", code, "the image", http_status_code=400)
    stubber.activate()
    monkeypatch.setattr(aws, "ec2", lambda target: client)


@pytest.mark.parametrize("code", ["InvalidAMIID.NotFound", "InvalidAMIID.Unavailable"])
def test_an_ami_that_is_gone_has_no_verdict(
    dead: DeadRun, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    answering(monkeypatch, code)
    assert repair.settle(dead, TARGET) is None


def test_an_ami_that_ec2_does_not_show_is_not_taken_for_gone(
    dead: DeadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, "UnauthorizedOperation")
    with pytest.raises(KilnError) as error:
        repair.settle(dead, TARGET)
    assert error.value.exit_status == 1
