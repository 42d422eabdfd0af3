"""Where a build happens, and why: said before anything is launched."""

from __future__ import annotations

import ast
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from botocore.exceptions import EndpointConnectionError

from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.cli import front
from kiln.cli.targets import KINDS, choose, kind_of_machine
from kiln.cloud import aws

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


def test_without_credentials_it_is_the_lab() -> None:
    target = choose("auto")
    assert (target.kind, target.place) == ("lab", ENDPOINT)
    assert str(target) == (
        "target: lab on this machine (no AWS credentials found); nothing is created in AWS"
    )


@pytest.mark.usefixtures("credentials")
def test_with_credentials_it_is_aws_and_it_says_where_they_come_from() -> None:
    target = choose("auto", "eu-west-1")
    assert (target.kind, target.place) == ("aws", None)
    assert str(target) == "target: AWS, region eu-west-1 (AWS credentials found: env)"


@pytest.mark.usefixtures("credentials")
def test_the_lab_can_be_asked_for_in_spite_of_credentials() -> None:
    assert choose("lab").kind == "lab"


@pytest.mark.usefixtures("credentials")
def test_an_endpoint_that_is_the_labs_means_the_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", ENDPOINT + "/")
    assert choose("auto").why == "AWS_ENDPOINT_URL is the lab's"


def test_aws_without_credentials_is_refused() -> None:
    with pytest.raises(KilnError, match="no AWS credentials") as caught:
        choose("aws")
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("flags", [("--target", "lab"), ()])
@pytest.mark.parametrize(
    "task", [("stack.deploy", "--name", "ml"), ("stack.status", "--name", "ml"),
             ("stack.delete", "--name", "ml"), ("deploy.codebuild",),
             ("nightly.codebuild", "--project", "p")]
)  # fmt: skip
def test_tasks_without_rehearsal_refuse_the_lab(
    task: tuple[str, ...], flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.run(["./invoke", *task, *flags]) == 2
    assert f"{task[0]} needs an AWS account" in capsys.readouterr().err


def test_a_target_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(KilnError, match="--target lba") as caught:
        choose("lba")
    assert "did you mean 'lab'?" in caught.value.hint


@pytest.mark.usefixtures("credentials")
def test_the_region_is_the_flags_then_the_environments_then_the_profiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert choose("auto").region == "us-east-1"
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text("[default]\nregion = ap-south-1\n")
    assert choose("auto").region == "ap-south-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert choose("auto").region == "eu-north-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert choose("auto").region == "eu-west-3"
    assert choose("auto", "sa-east-1").region == "sa-east-1"


def test_a_region_that_the_lab_does_not_have_is_refused_with_those_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for wanted in ("auto", "lab"):
        with pytest.raises(KilnError) as caught:
            choose(wanted, "eu-nowhere-1")
        assert caught.value.message == "--region: the lab has no region eu-nowhere-1"
        assert "ap-south-1, " in caught.value.hint
        assert caught.value.exit_status == 2
    monkeypatch.setenv("AWS_REGION", "eu-nowhere-2")
    with pytest.raises(KilnError, match=r"^AWS_REGION: the lab has no region eu-nowhere-2"):
        choose("auto")
    assert choose("lab").region == "us-east-1"  # the lab does not use AWS's configuration


@pytest.mark.usefixtures("credentials")
def test_a_region_that_boto3_does_not_know_is_asked_and_named_when_nothing_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = choose("aws", "eu-nowhere-1")
    client = MagicMock()
    client.get_caller_identity.side_effect = EndpointConnectionError(endpoint_url="https://x")
    monkeypatch.setattr(aws, "_client", lambda service, target: client)
    with pytest.raises(KilnError) as caught:
        target.identified()
    assert caught.value.message.startswith("eu-nowhere-1: AWS has no region of that name, as far")
    assert "did you mean 'eu-north-1'?" in caught.value.hint
    assert caught.value.exit_status == 2
    with pytest.raises(KilnError, match=r"^the credentials could not be checked: Could not"):
        target.in_region("eu-north-1").identified()


def test_a_configuration_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobodys")
    with pytest.raises(KilnError, match="nobodys") as caught:
        choose("auto", "eu-west-1")
    assert "--target lab" in str(caught.value)


def test_a_configuration_that_cannot_be_used_does_not_concern_the_lab(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobodys")
    assert choose("lab").region == "us-east-1"


@pytest.mark.parametrize(("status", "kind"), [(0, "lab"), (1, "aws")])
def test_a_machine_shows_where_it_runs_whatever_target_is_chosen(status: int, kind: str) -> None:
    machine = MagicMock()
    machine.ssh.return_value = (status, "", "")
    assert choose("auto").kind == "lab"  # without credentials, also beside a machine in AWS
    assert kind_of_machine(machine) == kind
    machine.ssh.assert_called_once_with("test -e /usr/lib/kiln-lab")


def knows_the_target(source: str) -> list[int]:
    """The lines that compare with a target's kind, or name a file of the lab's guests."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            compared = {ast.unparse(side).strip("'\"") for side in (node.left, *node.comparators)}
            known = bool(compared & (set(KINDS) - {"auto"}))
        else:
            text = node.value if isinstance(node, ast.Constant) else None
            known = isinstance(text, str) and "/kiln-lab" in text
        if known:
            lines.append(node.lineno)
    return lines


def test_nothing_in_kiln_but_the_choice_knows_which_target_it_has() -> None:
    lines = {
        path.relative_to(ROOT).as_posix(): at
        for path in (ROOT / "kiln").rglob("*.py")
        if (at := knows_the_target(path.read_text(encoding="utf-8")))
    }
    lines.pop("kiln/cli/targets.py")
    assert lines == {}
