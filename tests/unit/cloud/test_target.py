"""Where a build happens, and why: said before anything is launched."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

import tasks
from kiln.base.errors import KilnError
from kiln.cli import main
from kiln.cli.targets import choose, kind_of_machine

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


def test_no_credentials_choose_the_lab() -> None:
    target = choose("auto")
    assert (target.kind, target.place) == ("lab", ENDPOINT)
    assert "(no AWS credentials found); nothing is created in AWS" in str(target)


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


@pytest.mark.parametrize("flags", [("--target", "lab"), ()])
@pytest.mark.parametrize(
    "task", ["stack.deploy ml", "stack.status ml", "stack.delete ml", "deploy.codebuild",
             "nightly.codebuild p"]
)  # fmt: skip
def test_tasks_without_rehearsal_refuse_the_lab(
    task: str, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["./invoke", *task.split(), *flags], tasks.ns) == 2
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


@pytest.mark.parametrize(
    ("wanted", "region", "configured"),
    [
        ("auto", "eu-nowhere-1", "eu-west-1"),
        ("lab", "eu-nowhere-1", "eu-west-1"),
        ("auto", None, "eu-nowhere-1"),
    ],
)
def test_region_unknown_to_the_lab_is_refused(
    wanted: str, region: str | None, configured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", configured)
    with pytest.raises(KilnError, match=r"the lab has no region eu-nowhere-1\n.*ap-south-1, "):
        choose(wanted, region)
    # The lab does not need what is configured for AWS.
    assert choose("lab").region == ("eu-west-1" if region else "us-east-1")


@pytest.mark.parametrize(("status", "kind"), [(0, "lab"), (1, "aws")])
def test_machine_shows_its_kind(status: int, kind: str) -> None:
    machine = MagicMock()
    machine.ssh.return_value = (status, "", "")
    assert choose("auto").kind == "lab"  # without credentials, also beside a machine in AWS
    assert kind_of_machine(machine) == kind
