"""What Packer waits for is read from its own lines."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kiln.base.account import Account
from kiln.base.paths import ROOT
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.packer.process import Event, waits_for
from kiln.pipeline import bake


@pytest.mark.parametrize(
    ("line", "wait"),
    [
        ("Waiting for instance (i-1) to become ready...", "i-1 to start"),
        ("Waiting for SSH to become available...", "SSH on i-1"),
        (
            "Provisioning with shell script: packer-1.6/../../../provisioners/kernel.sh",
            "provisioner kernel on i-1",
        ),
        ("Provisioning with shell script: /tmp/packer-shell1175941336", "a command on i-1"),
        ("Stopping the source instance...", "i-1 to stop"),
        ("Waiting for AMI to become ready...", "the AMI to become available"),
        ("Complete!", ""),
    ],
)
def test_a_line_of_packer_says_what_it_waits_for(line: str, wait: str) -> None:
    assert waits_for(Event(0, "say", line), "i-1") == wait


def test_the_line_before_each_provisioner_about_its_limit_is_known() -> None:
    limit = Event(0, "say", "Setting a 2h5m0s timeout for the next provisioner...")
    assert limit.says("limit")
    assert not Event(0, "say", "Stopping the source instance...").says("limit")


def test_other_events_change_nothing() -> None:
    assert waits_for(Event(0, "error", "Waiting for SSH to become available..."), "i-1") == ""


def test_packer_waits_for_ssh_as_long_as_the_person_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_SSH_TIMEOUT", "1200")
    plan: Any = SimpleNamespace(
        account=Account(),
        target=Target("a test", "us-east-1"),
        recipe_digest="0" * 64,
        input_digest="1" * 64,
    )
    given = bake.run_variables(plan, Run("20260101T000000Z-abcd", "row", Path()), "abc")
    assert given["ssh_timeout"] == "1200.0s"
    template = (ROOT / "packer/shared/source.pkr.hcl").read_text()
    assert re.search(r"ssh_timeout += var\.ssh_timeout\n", template)
