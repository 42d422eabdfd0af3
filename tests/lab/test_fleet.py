"""Telemetry on instances that run already: one with somebody else's agent and configuration, which
does not reach CloudWatch at first, so that its wave fails, and one with no agent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

import pytest
from conftest import Guest, launching, users_environment
from fleet_guests import (
    AGENT_ETC,
    MANAGED,
    REPORTS,
    did,
    lay,
    role,
    tree,
    until_online,
)

from kiln.cloud.target import Target
from kiln.fleet.document import fleet_bucket, remove_stored
from kiln.fleet.install import HowToInstall, install_fleet
from kiln.fleet.machines import find_machines, parse_targets, run_command
from kiln.telemetry.settings import Telemetry
from lab.daemon import control
from tests.unit import commands

GROUP = "/fleet/events"
SETTINGS = Telemetry(flush_interval=2, namespace="Fleet", log_group=GROUP)
PLACE = ("--namespace", "Fleet", "--log-group", GROUP)
OLD_AGENT = "1.300031.0b313"
THEIRS = f"{AGENT_ETC}/amazon-cloudwatch-agent.d/theirs.json"
_FILE = {"file_path": "/var/log/job.log", "log_group_name": "/jobs"}
CONFIGURATION = json.dumps({"logs": {"logs_collected": {"files": {"collect_list": [_FILE]}}}})
NOWHERE = "127.0.0.9 monitoring.us-east-1.amazonaws.com logs.us-east-1.amazonaws.com"
JOB = "systemctl show -p MainPID --value job; cat /proc/sys/kernel/random/boot_id"
AGENT_STATE = "systemctl is-active amazon-cloudwatch-agent || true"


@dataclass
class Fleet:
    """`mute` does not reach CloudWatch at first, `bare` has no agent."""

    mute: Guest
    bare: Guest

    @property
    def both(self) -> list[Guest]:
        return [self.mute, self.bare]


@pytest.fixture(scope="module")
def fleet(ec2: Any, client: Any, key: Any, source_ami: str) -> Iterator[Fleet]:
    url = (
        "https://amazoncloudwatch-agent.s3.amazonaws.com/amazon_linux/amd64/"
        f"{OLD_AGENT}/amazon-cloudwatch-agent.rpm"
    )
    with ExitStack() as stack:
        profile = {"Name": stack.enter_context(role(client, MANAGED, REPORTS))}
        launch = stack.enter_context(launching(ec2, key, source_ami))
        mute, bare = (launch(IamInstanceProfile=profile) for _ in range(2))
        did(mute, f"echo '{NOWHERE}' | sudo tee -a /etc/hosts")
        lay(mute, {THEIRS: CONFIGURATION})
        lay(bare)
        start = "sudo systemctl enable --now amazon-cloudwatch-agent"
        did(mute, f"curl -sSfo a.rpm {url} && sudo rpm -U a.rpm && {start}")
        for guest in (mute, bare):
            did(guest, "sudo systemd-run -q --unit job sleep 100000")
        until_online(client("ssm"), [mute.id, bare.id])
        yield Fleet(mute, bare)


@dataclass
class Walked:
    """What came of it: an installation that fails; a canary and the rest; status, uninstall. The
    trees are those of `mute` and `bare`."""

    failed: dict[str, Any]
    output: str
    canary: dict[str, Any]
    rest: dict[str, Any]
    status: dict[str, dict[str, Any]]
    removed: dict[str, Any]
    removed_in_account: list[str]
    before: list[set[str]]
    after_failure: list[set[str]]
    after: list[set[str]]
    agents: list[list[str]]
    jobs: list[list[str]]


@pytest.fixture(scope="module")
def walked(fleet: Fleet, client: Any, lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Walked:
    home = tmp_path_factory.mktemp("fleet")
    targets = ",".join(guest.id for guest in fleet.both)

    def invoke(task: str, *flags: str, rc: int = 0) -> tuple[Any, str]:
        done = commands.invoke(
            task, "--targets", targets, "--target", "lab", "--json", *flags,
            timeout=300, env=users_environment(home),
        )  # fmt: skip
        assert done.returncode == rc, done.stdout + done.stderr
        return json.loads(done.stdout), done.stderr

    def each(command: str) -> list[str]:
        return [did(guest, command).strip() for guest in fleet.both]

    # A quick agent, so that a wave takes seconds.
    install = ("fleet.install", "--flush-interval", "2", *PLACE)
    before, jobs, agents = [tree(guest) for guest in fleet.both], [each(JOB)], [each(AGENT_STATE)]
    failed, output = invoke(*install, "--waves", "1,1", "--timeout", "0.3", rc=1)
    after_failure = [tree(guest) for guest in fleet.both]
    agents.append(each(AGENT_STATE))
    did(fleet.mute, f"sudo sed -i '/{NOWHERE}/d' /etc/hosts")
    aws = Target("a test", "us-east-1", account="123456789012")
    with patch.dict(os.environ, control.environment(lab)):
        machines = find_machines(aws, parse_targets(targets))
        how = HowToInstall(SETTINGS, "1", bucket=fleet_bucket(aws), patience=120)
        canary = asdict(install_fleet(aws, machines, how, print))
        rest = asdict(install_fleet(aws, machines, how, print))
        rows, _ = invoke("fleet.status", *PLACE)
        jobs.append(each(JOB))
        removed, _ = invoke("fleet.uninstall")
        account = remove_stored(aws, fleet_bucket(aws))
    agents.append(each(AGENT_STATE))
    after = [tree(guest) for guest in fleet.both]
    status = {row["instance_id"]: row for row in rows}
    return Walked(
        failed,
        output,
        canary,
        rest,
        status,
        removed,
        account,
        before,
        after_failure,
        after,
        agents,
        jobs,
    )


def test_silent_instance_is_rolled_back_and_stops_waves(fleet: Fleet, walked: Walked) -> None:
    (wave,) = walked.failed["waves"]
    assert (wave["ok"], wave["failed"]) == ([], [fleet.mute.id])
    assert wave["rolled_back"] == [fleet.mute.id]
    assert walked.failed["stopped"] is True
    assert walked.failed["left"] == [fleet.bare.id]
    assert f"{fleet.mute.id}: no GPU metric in Fleet and no test event in {GROUP}" in walked.output
    assert walked.after_failure == walked.before
    assert walked.agents[1] == walked.agents[0] == ["active", "inactive"]


def test_the_same_command_goes_on_where_it_stopped(fleet: Fleet, walked: Walked) -> None:
    assert [wave["ok"] for wave in walked.canary["waves"]] == [[fleet.mute.id]]
    assert (walked.canary["left"], walked.canary["stopped"]) == ([fleet.bare.id], False)
    assert walked.rest["already"] == [fleet.mute.id]
    assert [wave["ok"] for wave in walked.rest["waves"]] == [[fleet.bare.id]]


def test_status_shows_driver_agent_and_configuration(fleet: Fleet, walked: Walked) -> None:
    mute, bare = walked.status[fleet.mute.id], walked.status[fleet.bare.id]
    assert [(guest["reports"], guest["missing"]) for guest in (mute, bare)] == [(True, [])] * 2
    assert bare["driver"] == mute["driver"] == "580.95.05"
    assert (mute["agent_version"], bare["agent_version"]) == (OLD_AGENT, "1.300072.0b1766")
    ours = f"fleet.install {walked.rest['bundle_sha256'][:12]}"
    assert (mute["configuration"], bare["configuration"]) == (f"{ours} + theirs.json", ours)
    # A test of the way to CloudWatch is not an Xid.
    assert mute["xids"] == bare["xids"] == {}


def test_uninstall_leaves_nothing_behind(fleet: Fleet, walked: Walked, client: Any) -> None:
    assert sorted(walked.removed["ok"]) == sorted(guest.id for guest in fleet.both)
    assert walked.after == walked.before
    assert walked.agents[2] == walked.agents[0]
    listed = client("ssm").list_documents(Filters=[{"Key": "Owner", "Values": ["Self"]}])
    assert "AMIKiln-InstallTelemetry" not in [
        identifier["Name"] for identifier in listed["DocumentIdentifiers"]
    ]
    assert walked.removed_in_account[0] == "document AMIKiln-InstallTelemetry"
    assert all(name.startswith("s3://") for name in walked.removed_in_account[1:])


def test_jobs_on_the_instances_go_on(walked: Walked) -> None:
    assert walked.jobs[1] == walked.jobs[0]


def test_late_command_is_cancelled_on_the_machine(fleet: Fleet, walked: Walked, lab: Any) -> None:
    said: list[str] = []
    shell, late = {"DocumentName": "AWS-RunShellScript"}, {"commands": ["sleep 1234"]}
    with patch.dict(os.environ, control.environment(lab)):
        aws = Target("a test", "us-east-1", account="123456789012")
        (answer,) = run_command(
            aws, shell, [([fleet.bare.id], late)], patience=3, say=said.append
        ).values()
    assert (answer.ok, answer.why) == (False, "Cancelled")
    assert said == [f"cancels AWS-RunShellScript on {fleet.bare.id}: 3 s are over"]
    assert did(fleet.bare, "pgrep -cf '[s]leep 1234' || true").strip() == "0"
