"""Twelve instances of four distributions, as a team's fleet is: agents of three versions and none,
configurations of others, one instance without a GPU, one whose disk is full, one that dies midway.
Around them the stack of stack.deploy: its role, alarms and dashboard, and its own network with two
instances. In the end nothing is left. With -s it prints how long the installation took:

    KILN_FLEET=1 .venv/bin/python -m pytest -s tests/lab/test_whole_fleet.py
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from conftest import Guest, launching, users_environment, wait_for
from fleet_guests import AGENT_ETC, did, lay, tree, until_online

from tests.unit import commands, insights

pytestmark = pytest.mark.skipif(
    not os.environ.get("KILN_FLEET"),
    reason="twelve guests: KILN_FLEET=1, or ./invoke test --all",
)
AMI = {
    "al2": "/aws/service/ami-amazon-linux-latest/amzn2-ami-kernel-5.10-hvm-x86_64-gp2",
    "al2023": "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-6.1-x86_64",
    "ubuntu": "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id",
    "debian": "/aws/service/debian/release/12/latest/amd64",
}
USER = {"al2": "ec2-user", "al2023": "ec2-user", "ubuntu": "ubuntu", "debian": "admin"}
S3 = "https://s3.amazonaws.com"
SSM_AGENT = f"{S3}/ec2-downloads-windows/SSMAgent/3.3.1957.0/debian_amd64/amazon-ssm-agent.deb"
OLD, NEWER = "1.300031.0b313", "1.300064.0b1337"
MERGED = f"{AGENT_ETC}/amazon-cloudwatch-agent.d"
_JOB_LOG = {"file_path": "/var/log/job.log", "log_group_name": "/jobs"}
LOGS = {"logs": {"logs_collected": {"files": {"collect_list": [_JOB_LOG]}}}}
MEMORY = {"metrics": {"metrics_collected": {"mem": {"measurement": ["mem_used_percent"]}}}}
# Ours are in another namespace, and an agent has one for all.
ELSEWHERE = {"metrics": {"namespace": "Theirs", **MEMORY["metrics"]}}
# Instance → its distribution, the agent that it has, that agent's configuration.
FLEET: dict[str, tuple[str, str, Any]] = {
    "canary": ("al2", "", None),
    "al2-theirs": ("al2", OLD, LOGS),
    "al2023": ("al2023", "", None),
    "al2023-theirs": ("al2023", NEWER, LOGS),
    "ubuntu": ("ubuntu", "", None),
    "ubuntu-theirs": ("ubuntu", NEWER, MEMORY),
    "ubuntu-bare-agent": ("ubuntu", OLD, None),
    "debian": ("debian", "", None),
    "debian-theirs": ("debian", OLD, MEMORY),
    "no-gpu": ("debian", "", None),
    "full": ("al2023", OLD, LOGS),
    "dies": ("al2", "", None),
}
REPORTING = [name for name in FLEET if name not in ("no-gpu", "full", "dies")]
JOB = "systemctl show -p MainPID --value job; cat /proc/sys/kernel/random/boot_id"
STACK = "team"
# An Xid as the monitor writes it, made of the last line that it wrote.
XID = """
import json
path = "/var/log/gpuevent.log"
line = json.loads(open(path).read().splitlines()[-1])
line.update(xid=79, severity="fatal", process="python", name="GPU has fallen off the bus")
line.pop("injected", None)
open(path, "a").write(json.dumps(line) + "\\n")
"""
QUICK = ("--flush-interval", "5")


def _task(home: Any, *words: str, rc: int = 0) -> Any:
    """What a task prints, as JSON."""
    done = commands.invoke(
        *words, "--target", "lab", "--json", timeout=600, env=users_environment(home)
    )
    assert done.returncode == rc, done.stdout + done.stderr
    return json.loads(done.stdout)


def of_stack(outputs: dict[str, str]) -> list[str]:
    """The two instances of the stack's own network."""
    return [outputs["FirstInstance"], outputs["SecondInstance"]]


@dataclass
class Fleet:
    """The instances by name, and what they were before anything was done to them."""

    guests: dict[str, Guest]
    home: Any
    stack: dict[str, str]
    before: dict[str, set[str]] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)

    def id(self, name: str) -> str:
        return self.guests[name].id

    def ids(self, names: list[str]) -> list[str]:
        return sorted(self.id(name) for name in names)

    def invoke(self, task: str, names: list[str], *flags: str, rc: int = 0) -> Any:
        """What a task prints about these instances, in this order."""
        targets = ",".join(map(self.id, names))
        return _task(self.home, task, "--targets", targets, *flags, rc=rc)

    def trees(self) -> dict[str, set[str]]:
        with ThreadPoolExecutor(4) as pool:
            names = [name for name in FLEET if name != "dies"]
            return dict(
                zip(names, pool.map(lambda name: tree(self.guests[name]), names), strict=True)
            )


def _prepared(launch: Any, ami: str, profile: str, name: str) -> Guest:
    """An instance as its owner has it."""
    distro, agent, configuration = FLEET[name]
    guest: Guest = launch(
        ami,
        user=USER[distro],
        InstanceType="t3.micro" if name == "no-gpu" else "g4dn.xlarge",
        IamInstanceProfile={"Name": profile},
    )
    if distro == "debian":  # its AMI has no agent of Systems Manager
        did(guest, f"curl -sSfo ssm.deb {SSM_AGENT} && sudo dpkg -i ssm.deb")
        did(guest, "sudo systemctl enable --now amazon-ssm-agent")
    theirs = {f"{MERGED}/theirs.json": json.dumps(configuration)} if configuration else {}
    if name == "no-gpu":
        return guest
    lay(guest, theirs)
    did(guest, "sudo systemd-run -q --unit job sleep 100000")
    if agent:
        folder, kind = ("amazon_linux", "rpm") if distro.startswith("al") else (distro, "deb")
        url = f"{S3}/amazoncloudwatch-agent/{folder}/amd64/{agent}/amazon-cloudwatch-agent.{kind}"
        install = "rpm -U" if kind == "rpm" else "dpkg -i"
        did(guest, f"curl -sSfo a.{kind} {url} && sudo {install} a.{kind}")
    if configuration:
        did(guest, "sudo systemctl enable --now amazon-cloudwatch-agent")
    return guest


@pytest.fixture(scope="module")
def fleet(
    ec2: Any, client: Any, key: Any, source_ami: str, tmp_path_factory: Any
) -> Iterator[Fleet]:
    ssm = client("ssm")
    amis = {name: ssm.get_parameter(Name=of)["Parameter"]["Value"] for name, of in AMI.items()}
    home = tmp_path_factory.mktemp("fleet")
    bucket = "BundleBucket=ami-kiln-fleet-123456789012-us-east-1"
    given = ("--parameter", bucket, "--parameter", "DeployInfra=true")
    outputs = _task(home, "stack.deploy", "--name", STACK, *given)
    with launching(ec2, key, source_ami) as launch:
        profile = outputs["InstanceProfile"]
        with ThreadPoolExecutor(4) as pool:
            made = pool.map(
                lambda name: _prepared(launch, amis[FLEET[name][0]], profile, name), FLEET
            )
            guests = dict(zip(FLEET, made, strict=True))
        until_online(ssm, [*(guest.id for guest in guests.values()), *of_stack(outputs)])
        found = Fleet(guests, home, outputs)
        found.before = found.trees()
        found.jobs = {name: did(guests[name], JOB) for name in REPORTING}
        full = "sudo mkdir -p /opt/kiln && sudo mount -t tmpfs -o size=64k tmpfs /opt/kiln"
        did(guests["full"], full)
        yield found


@dataclass
class Walked:
    """What came of the tasks, in their order; `trial` are the stack's own two instances."""

    first: dict[str, Any]
    after_failure: set[str]
    again: dict[str, Any]
    status: dict[str, dict[str, Any]]
    trial: list[dict[str, Any]]
    alarm: dict[str, Any]
    graphs: dict[str, list[str]]
    events: list[dict[str, str]]
    refused: dict[str, Any]
    replaced: dict[str, Any]
    jobs: dict[str, str]
    removed: dict[str, Any]
    after: dict[str, set[str]]
    left: list[str]


def _alarm(fleet: Fleet) -> dict[str, Any]:
    """The alarm about fatal Xids, when it is raised or after a minute."""
    deadline = time.monotonic() + 60
    while True:
        shown = _task(fleet.home, "stack.status", "--name", STACK)["alarms"]
        (found,) = [row for row in shown if row["name"] == f"{STACK}-fatal-xid"]
        if found["state"] == "ALARM" or time.monotonic() > deadline:
            return dict(found)
        time.sleep(1)


def _graphs(watch: Any, dashboard: str) -> dict[str, list[str]]:
    """The dashboard's graphs → the series that their expressions find, by their dimensions."""
    body = json.loads(watch.get_dashboard(DashboardName=dashboard)["DashboardBody"])
    now = datetime.now(timezone.utc)
    found: dict[str, list[str]] = {}
    for widget in body["widgets"]:
        rows = widget["properties"].get("metrics", [])
        queries = [
            {"Id": f"e{number}", "Expression": row[0]["expression"]}
            for number, row in enumerate(rows)
            if row[0].get("expression") and "SEARCH" in row[0]["expression"]
        ]
        if not queries or len(queries) != len(rows):
            continue
        answer = watch.get_metric_data(
            MetricDataQueries=queries, StartTime=now - timedelta(hours=1),
            EndTime=now + timedelta(minutes=1),
        )  # fmt: skip
        results = answer["MetricDataResults"]
        title = widget["properties"]["title"]
        found[title] = [result["Label"] for result in results if result["Values"]]
    return found


def _events(client: Any, dashboard: str) -> list[dict[str, str]]:
    """The rows of the dashboard's table of events."""
    body = json.loads(client("cloudwatch").get_dashboard(DashboardName=dashboard)["DashboardBody"])
    return insights.table(client("logs"), body, "Xid, SXid and health events")


def _left(client: Any) -> list[str]:
    """What is still in the account of stack and fleet."""
    ssm, watch = client("ssm"), client("cloudwatch")
    documents = ssm.list_documents(Filters=[{"Key": "Owner", "Values": ["Self"]}])
    parameters = ssm.describe_parameters()["Parameters"]
    roles = client("iam").list_roles()["Roles"]
    topics = client("sns").list_topics()["Topics"]
    alarms = watch.describe_alarms(AlarmTypes=["MetricAlarm", "CompositeAlarm"])
    groups = client("logs").describe_log_groups()["logGroups"]
    named = [{"Name": "tag:Name", "Values": [STACK]}]
    running = [*named, {"Name": "instance-state-name", "Values": ["pending", "running"]}]
    return [
        *(vpc["VpcId"] for vpc in client("ec2").describe_vpcs(Filters=named)["Vpcs"]),
        *map(str, client("ec2").describe_instances(Filters=running)["Reservations"]),
        *(identifier["Name"] for identifier in documents["DocumentIdentifiers"]),
        *(bucket["Name"] for bucket in client("s3").list_buckets()["Buckets"]),
        *(
            parameter["Name"]
            for parameter in parameters
            if parameter["Name"].startswith("AmazonCloudWatch-kiln")
        ),
        *(role["RoleName"] for role in roles if role["RoleName"].startswith(STACK)),
        *(topic["TopicArn"] for topic in topics if STACK in topic["TopicArn"]),
        *(alarm["AlarmName"] for alarm in (*alarms["MetricAlarms"], *alarms["CompositeAlarms"])),
        *(dashboard["DashboardName"] for dashboard in watch.list_dashboards()["DashboardEntries"]),
        *(group["logGroupName"] for group in groups if "accelerated" in group["logGroupName"]),
    ]


def _end_when_it_begins(client: Any, ec2: Any, instance_id: str) -> None:
    """Terminate an instance as soon as our document runs on it."""
    ssm, deadline = client("ssm"), time.monotonic() + 300
    while time.monotonic() < deadline:
        listed = ssm.list_command_invocations(InstanceId=instance_id)["CommandInvocations"]
        if any(resource["DocumentName"].startswith("AMIKiln-") for resource in listed):
            ec2.terminate_instances(InstanceIds=[instance_id])
            return
        time.sleep(0.2)


@pytest.fixture(scope="module")
def walked(fleet: Fleet, client: Any, ec2: Any) -> Walked:
    names, guests = list(FLEET), fleet.guests
    dying = threading.Thread(target=_end_when_it_begins, args=(client, ec2, fleet.id("dies")))
    dying.start()
    first = fleet.invoke("fleet.install", names, *QUICK, "--patience", "2", rc=1)
    print(f"\ninstalled on {len(names)} instances in {first['seconds']} s; seconds of the waves:")
    print("\n".join(f"  {len(wave['instances']):2}: {wave['seconds']}" for wave in first["waves"]))
    dying.join()
    wait_for(ec2, fleet.id("dies"), "terminated")
    did(guests["full"], "sudo umount /opt/kiln && sudo rmdir /opt/kiln")
    after_failure = tree(guests["full"])
    again = fleet.invoke("fleet.install", [name for name in names if name != "dies"], *QUICK)
    did(guests["ubuntu"], f"sudo python3 -c '{XID}'")
    alarm = _alarm(fleet)
    graphs = _graphs(client("cloudwatch"), fleet.stack["DashboardName"])
    events = _events(client, fleet.stack["DashboardName"])
    rows = fleet.invoke("fleet.status", names)
    trial = _task(fleet.home, "fleet.status", "--targets", f"tag:Name={STACK}")
    # Their configuration changes, and the two cannot be together.
    other = ["ubuntu-theirs"]
    fleet.invoke("fleet.uninstall", other)
    lay(guests[other[0]], {f"{MERGED}/theirs.json": json.dumps(ELSEWHERE)})
    did(guests[other[0]], "sudo systemctl restart amazon-cloudwatch-agent")
    before = tree(guests[other[0]])
    refused = fleet.invoke("fleet.install", other, *QUICK, "--patience", "0.3", rc=1)
    assert tree(guests[other[0]]) == before
    replaced = fleet.invoke("fleet.install", other, *QUICK, "--replace")
    jobs = {name: did(guests[name], JOB) for name in REPORTING}
    fleet.before[other[0]] = before
    removed = fleet.invoke("fleet.uninstall", [name for name in names if name != "dies"], "--clean")
    after = fleet.trees()
    done = commands.invoke(
        *("stack.delete", "--name", STACK, "--target", "lab", "--with-logs"),
        timeout=300, env=users_environment(fleet.home),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return Walked(
        first, after_failure, again, {row["instance_id"]: row for row in rows}, trial, alarm,
        graphs, events, refused, replaced, jobs, removed, after, _left(client),
    )  # fmt: skip


def test_all_but_three_report_after_one_command(fleet: Fleet, walked: Walked) -> None:
    ok = [key for wave in walked.first["waves"] for key in wave["ok"]]
    assert sorted(ok) == fleet.ids(REPORTING)
    assert [len(wave["instances"]) for wave in walked.first["waves"]] == [1, 2, 8]
    assert walked.first["waves"][0]["ok"] == [fleet.id("canary")]
    skipped = walked.first["skipped"]
    assert list(skipped) == [fleet.id("no-gpu")]
    assert "no GPU: t3.micro" in skipped[fleet.id("no-gpu")]


def test_a_full_disk_is_named_and_put_back_and_a_dead_instance_is_named(
    fleet: Fleet, walked: Walked
) -> None:
    last = walked.first["waves"][-1]
    assert sorted(last["failed"]) == fleet.ids(["full", "dies"])
    assert last["rolled_back"] == [fleet.id("full")]
    assert "No space left on device" in last["why"][fleet.id("full")]
    assert last["not_put_back"][fleet.id("dies")].startswith("it is ")
    assert walked.first["stopped"] is True
    assert walked.after_failure == fleet.before["full"]


def test_the_next_run_does_what_is_left(fleet: Fleet, walked: Walked) -> None:
    assert [wave["ok"] for wave in walked.again["waves"]] == [[fleet.id("full")]]
    assert sorted(walked.again["already"]) == fleet.ids(REPORTING)
    assert walked.again["stopped"] is False


def test_status_tells_each_agent_and_configuration(fleet: Fleet, walked: Walked) -> None:
    ours = f"fleet.install {walked.first['bundle_sha256'][:12]}"
    for name in REPORTING:
        row = walked.status[fleet.id(name)]
        _, agent, theirs = FLEET[name]
        assert (row["reports"], row["missing"], row["driver"]) == (True, [], "580.95.05"), name
        assert row["agent_version"] == (agent or "1.300072.0b1766"), name
        assert row["configuration"] == (f"{ours} + theirs.json" if theirs else ours), name
    no_gpu = walked.status[fleet.id("no-gpu")]
    assert [text.partition(":")[0] for text in no_gpu["missing"]] == [
        "no GPU", "no agent", "no metrics", "no events",
    ]  # fmt: skip
    assert walked.status[fleet.id("dies")]["missing"] == ["not running: it is terminated"]


def test_the_instances_of_the_stacks_own_network_boot_with_its_role(
    fleet: Fleet, walked: Walked
) -> None:
    assert sorted(row["instance_id"] for row in walked.trial) == sorted(of_stack(fleet.stack))
    for row in walked.trial:
        lacks = [text.partition(":")[0] for text in row["missing"]]
        # A plain AMI: reached by Systems Manager through the role of the stack, and asked.
        assert lacks == ["no driver", "no agent", "no metrics", "no events"]


def test_an_xid_of_one_instance_raises_the_alarm_and_is_on_dashboard_and_in_status(
    fleet: Fleet, walked: Walked
) -> None:
    assert walked.alarm["state"] == "ALARM"
    xids = {key: row["xids"] for key, row in walked.status.items() if row["xids"]}
    assert xids == {fleet.id("ubuntu"): {"79": 1}}
    assert [label for label in walked.graphs["Events by Xid"] if "79" in label.split()]
    shown = " ".join(walked.graphs["GPU use (%)"])
    fatal = [(row["instance"], row["code"]) for row in walked.events if "drill" not in row]
    assert fatal == [(fleet.id("ubuntu"), "79")]
    assert [name for name in REPORTING if fleet.id(name) not in shown] == []


def test_a_configuration_that_cannot_be_joined_stays_unless_it_is_to_be_replaced(
    fleet: Fleet, walked: Walked
) -> None:
    (wave,) = walked.refused["waves"]
    assert wave["failed"] == wave["rolled_back"] == [fleet.id("ubuntu-theirs")]
    assert "no GPU metric in CWAgent" in wave["why"][fleet.id("ubuntu-theirs")]
    assert walked.replaced["waves"][0]["ok"] == [fleet.id("ubuntu-theirs")]


def test_jobs_on_the_instances_go_on(fleet: Fleet, walked: Walked) -> None:
    assert walked.jobs == fleet.jobs


def test_nothing_is_left_in_the_account(walked: Walked) -> None:
    assert walked.left == []


def test_uninstall_brings_every_instance_back(fleet: Fleet, walked: Walked) -> None:
    assert sorted(walked.removed["ok"]) == fleet.ids([*REPORTING, "full"])
    for name, after in walked.after.items():
        assert after == fleet.before[name], name
    for name, (_, agent, theirs) in FLEET.items():
        if name != "dies" and agent and theirs:
            shown = fleet.guests[name].run("systemctl is-active amazon-cloudwatch-agent").stdout
            assert shown.strip() == "active", name
