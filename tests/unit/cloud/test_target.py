"""Where a build happens, and why: said before anything is launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

import tasks
from kiln.base.errors import KilnError
from kiln.cli import main
from kiln.cli.targets import choose
from kiln.cloud import aws
from kiln.cloud.target import Target

ENDPOINT = "http://127.0.0.1:4602"


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user without AWS configuration; lab 3."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("KILN_LAB_INDEX", "3")
    monkeypatch.delenv("KILN_LAB_PORT", raising=False)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example")


@pytest.mark.usefixtures("credentials")
def test_credentials_choose_aws_but_for_the_labs_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = choose("auto", "eu-west-1")
    assert (target.kind, target.place) == ("aws", None)
    assert str(target) == "target: AWS, region eu-west-1 (AWS credentials found: env)"
    monkeypatch.setenv("AWS_ENDPOINT_URL", ENDPOINT + "/")
    for wanted in ("auto", "aws"):
        assert choose(wanted).why == "AWS_ENDPOINT_URL is the lab's"


@pytest.mark.parametrize("task", ["stack.deploy ml", "deploy.codebuild", "nightly.codebuild p"])
def test_tasks_without_rehearsal_refuse_the_lab(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = choose("auto")
    assert (target.kind, target.place) == ("lab", ENDPOINT)
    assert main.run(["./invoke", *task.split()], tasks.ns) == 2
    assert f"{task.split(maxsplit=1)[0]} needs an AWS account" in capsys.readouterr().err


@pytest.mark.usefixtures("credentials")
def test_region_comes_from_flag_environment_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert choose("auto").region == "us-east-1"
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text("[default]\nregion = ap-south-1\n")
    assert choose("auto").region == "ap-south-1"
    for name, region in (("AWS_DEFAULT_REGION", "eu-north-1"), ("AWS_REGION", "eu-west-3")):
        monkeypatch.setenv(name, region)
        assert [choose(kind).region for kind in ("auto", "lab")] == [region, region]
    assert choose("auto", "sa-east-1").region == "sa-east-1"


def test_web_page_answer_is_not_printed() -> None:
    page = {"Error": {"Code": "500", "Message": "<!doctype html><html lang=en><title>500"}}
    with (
        pytest.raises(KilnError, match="GetParameter answered 500: the answer is a web page") as e,
        aws.explained("the parent AMI could not be looked up"),
    ):
        raise ClientError(page, "GetParameter")  # type: ignore[arg-type]
    assert "<html" not in str(e.value)
    assert e.value.exit_status == 1


# https://github.com/fog/fog-aws/issues/585
@pytest.mark.parametrize(
    "code", ["AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException"]
)
def test_auth_failure_hints_at_disabled_region(code: str) -> None:
    answer: Any = {"Error": {"Code": code, "Message": "not able to validate"}}
    error = aws.as_error("the AMIs could not be listed", ClientError(answer, "DescribeImages"))
    assert "aws account enable-region" in (error.hint or "")


def test_misspelled_region_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sts:
        def get_caller_identity(self) -> Any:
            raise EndpointConnectionError(endpoint_url="https://sts.example")

    monkeypatch.setattr(aws, "client", lambda *_: Sts())
    with pytest.raises(KilnError, match="eu-centrall-1: AWS has no region of that name") as refused:
        Target("a test", "eu-centrall-1").identified()
    assert refused.value.exit_status == 2
    assert refused.value.hint.startswith("did you mean 'eu-central-1'?")
    with pytest.raises(KilnError, match="the credentials could not be checked") as failed:
        Target("a test", "eu-central-1").identified()
    assert failed.value.exit_status == 1


@pytest.mark.parametrize(
    ("code", "gone"),
    [
        ("InvalidAMIID.NotFound", True),
        ("InvalidAMIID.Unavailable", True),
        ("InvalidSnapshot.NotFound", False),
        ("RequestLimitExceeded", False),
    ],
)
def test_ami_is_gone_by_its_error_code(code: str, *, gone: bool) -> None:
    answer: Any = {"Error": {"Code": code, "Message": "…"}}
    assert aws.is_gone(ClientError(answer, "DescribeImages")) is gone


def test_throttled_calls_are_repeated() -> None:
    retries = aws.client("ec2", Target("a test", "eu-central-1")).meta.config.retries
    assert retries == {"mode": "standard", "total_max_attempts": 7}
