"""`./invoke iam.policy`: a policy for the caller's regions and account."""

from __future__ import annotations

import json
import re

import pytest

import tasks
from kiln.base.paths import ROOT
from kiln.cli import main
from kiln.cloud import iam


def printed(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main.run(["./invoke", "iam.policy", *flags], tasks.ns) == 0
    return capsys.readouterr().out


def test_policy_names_the_regions_and_account(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--task", "build", "--regions", "eu-west-3", "--account", "111122223333")
    policy = json.loads(printed(capsys, *flags))
    launch = next(each for each in policy["Statement"] if each["Sid"] == "LaunchInstance")
    assert launch["Condition"]["StringEquals"] == {"aws:RequestedRegion": ["eu-west-3"]}
    assert launch["Resource"] == ["arn:aws:ec2:*:111122223333:instance/*"]
    images = next(each for each in policy["Statement"] if each["Sid"] == "LaunchFrom")
    assert images["Resource"] == ["arn:aws:ec2:*::image/*"]


FILES = {
    "build": iam.POLICY_FILE,
    "settings": iam.POLICY_FILE_SETTINGS,
    **{task: iam.publishing_file(task) for task in iam.PUBLISHING},
}


@pytest.mark.parametrize("task", FILES)
def test_policy_is_the_committed_one_without_flags(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, "--task", task) == FILES[task].read_text()


def test_page_has_the_listed_policies(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(printed(capsys, "--list", "--json"))
    page = (ROOT / "docs" / "iam.md").read_text().replace("`", "")
    rows = re.findall(r"^\| \[(iam-.*?)\].*? \| (.*?) \| (.*?) \|", page, re.MULTILINE)
    assert rows == [(FILES[name].name, each["tasks"], each["who"]) for name, each in listed.items()]


@pytest.mark.parametrize("flags", [("--task", "x"), ("--regions", "moon-1"), ("--account", "1")])
def test_wrong_flag_is_invalid_input(flags: tuple[str, str]) -> None:
    assert main.run(["./invoke", "iam.policy", *flags], tasks.ns) == 2
