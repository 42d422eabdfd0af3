"""What Packer waits for is read from its own lines."""

from __future__ import annotations

import re

import pytest

from kiln.base.paths import ROOT
from kiln.packer.output import SSH_TIMEOUT, Event, Wait, waits_for


@pytest.mark.parametrize(
    ("line", "wait"),
    [
        ("Waiting for instance (i-1) to become ready...", Wait("i-1 to start")),
        ("Waiting for SSH to become available...", Wait("SSH on i-1", 600)),
        (
            "Provisioning with shell script: packer-1.6/../../../provisioners/kernel.sh",
            Wait("provisioner kernel on i-1"),
        ),
        ("Provisioning with shell script: /tmp/packer-shell1175941336", Wait("a command on i-1")),
        ("Stopping the source instance...", Wait("i-1 to stop")),
        ("Waiting for AMI to become ready...", Wait("the AMI to become available")),
        ("Complete!", None),
    ],
)
def test_a_line_of_packer_says_what_it_waits_for(line: str, wait: Wait | None) -> None:
    assert waits_for(Event(0, "say", line), "i-1") == wait


def test_the_line_before_each_provisioner_about_its_limit_is_known() -> None:
    limit = Event(0, "say", "Setting a 2h5m0s timeout for the next provisioner...")
    assert limit.patience == "2h5m0s"
    assert Event(0, "say", "Stopping the source instance...").patience == ""


def test_other_events_change_nothing() -> None:
    assert waits_for(Event(0, "error", "Waiting for SSH to become available..."), "i-1") is None


def test_the_limit_of_ssh_is_the_templates() -> None:
    template = (ROOT / "templates/packer/source.pkr.hcl.j2").read_text()
    (minutes,) = re.findall(r'ssh_timeout += "(\d+)m"', template)
    assert float(minutes) * 60 == SSH_TIMEOUT
