"""A walk through an account, without guests: clean-up, budget, evidence."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devel.testbed import inventory
from kiln.base.errors import operation_failed
from kiln.base.recipe import Recipe
from kiln.cli import acceptance_steps
from kiln.cli.acceptance_steps import STEPS, Acceptance, SkippedError, Step, accept, walk
from kiln.cli.options import Place
from kiln.cloud import cleanup, stacks
from kiln.cloud.images import require_image
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.fleet import machines
from kiln.fleet.install import Installation
from kiln.fleet.machines import FleetMachine
from kiln.pipeline import evidence, verify
from kiln.pipeline.build import Outcome
from kiln.pipeline.evidence import Evidence, StepResult, status_text, without_ids, write_evidence
from kiln.pipeline.plan import Options
from kiln.pipeline.record import Record, write_record
from kiln.pipeline.records import all_of
from kiln.publish import channels
from tests.unit.publish.channel import AL2, AWS, HOME, OTHER, RECIPE, Bake, Client, versions_of
from tests.unit.publish.faults import faulty, refuses
from tests.unit.records import a_record

pytestmark = pytest.mark.slow
CLEANS = {step.id for step in STEPS if step.cleans}


@pytest.fixture
def asked(
    client: Client, bake: Bake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Acceptance:
    """A walk with an AMI that somebody has built. No guest boots: each check passes."""
    numbers = itertools.count()

    def verified(ami_id: str, kind: str | None, **_: Any) -> Record:
        run_id = f"20261120T000000Z-{next(numbers):04x}"
        facts = {"run_id": run_id, "region": HOME, "ami_id": ami_id}
        record = a_record(**facts, kind="verify", versions=versions_of("510.47.03"))
        folder = tmp_path / "build" / RECIPE.name / run_id
        folder.mkdir(parents=True)
        write_record(Run(run_id, RECIPE.name, folder), record)
        return record

    monkeypatch.setattr(verify, "verify_by_id", verified)
    monkeypatch.setenv("KILN_AWS_SSH_SOURCE_CIDRS", "192.0.2.7/32")
    run = Run("20261120T000000Z-ffff", "acceptance", tmp_path)
    return Acceptance(AWS, Place("aws", HOME), [RECIPE], OTHER, run, ami=bake())


def left(client: Client) -> list[Any]:
    """The account's resources, by region."""
    found: list[Any] = []
    for region in (HOME, OTHER):
        ec2 = client("ec2", region)
        templates = ec2.describe_launch_templates()["LaunchTemplates"]
        held = channels.all_held(AWS.in_region(region))
        found.append((inventory(ec2), [each["LaunchTemplateId"] for each in templates], held))
    return found


def outcomes(done: Evidence) -> dict[str, str]:
    return {step.id: step.outcome for step in done.steps}


@pytest.mark.parametrize(
    # The first call that makes something, and the last.
    "broken",
    [pytest.param("RunInstances", marks=pytest.mark.all), "CreateLaunchTemplate"],
)
def test_refused_call_leaves_nothing_behind(client: Client, asked: Acceptance, broken: str) -> None:
    before, tags = left(client), require_image(AWS, str(asked.ami)).tags
    with faulty(refuses(broken, "UnauthorizedOperation")):
        done = accept(asked, 10)
    assert not done.succeeded
    (failed,) = (step for step in done.steps if step.outcome == "failed")
    assert failed.id not in CLEANS
    assert left(client) == before
    assert require_image(AWS, str(asked.ami)).tags == tags


def test_clean_up_goes_on_and_names_what_is_left(
    client: Client, asked: Acceptance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(ami_id: str, kind: str | None, **_: Any) -> Record:
        return a_record(ami_id=ami_id, status="failed")

    monkeypatch.setattr(verify, "verify_by_id", failing)
    monkeypatch.setattr(cleanup, "_BELIEVED", 0.1)
    with faulty(refuses("DeregisterImage", "UnauthorizedOperation")):
        done = accept(asked, 10)
    failed = {step.id: step.detail for step in done.steps if step.outcome == "failed"}
    assert set(failed) == {"build", "retire", "sweep"}
    assert re.search("left: .*AMI ami-", failed["sweep"])


def test_ami_of_another_row_is_not_copied(client: Client, asked: Acceptance, bake: Bake) -> None:
    before = left(client)
    other = bake(3, tags={"kiln:recipe": "another-row"})
    done = accept(replace(asked, ami=other), 10)
    assert done.steps[1].detail == f"{other} is not of {RECIPE.name}: --name another-row"
    client("ec2").deregister_image(ImageId=other, DeleteAssociatedSnapshots=True)
    assert left(client) == before


def test_budget_ends_the_walk_before_a_step(asked: Acceptance) -> None:
    done: list[str] = []

    def step(name: str, copies: int, *, cleans: bool = False) -> Step:
        def do(made: Acceptance) -> str:
            done.append(name)
            return ""

        return Step(name, "", do, copies=copies, cleans=cleans)

    # A copy costs $2.00.
    table = [step("a", 1), step("b", 1), step("c", 0), step("d", 1, cleans=True)]
    results = list(walk(asked, table, 3.5))
    assert done == ["a", "d"]
    assert [result.outcome for result in results] == ["passed", "skipped", "skipped", "passed"]
    assert results[1].detail == "not run: b (about $2.00) would pass the budget of $3.50"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (SkippedError("no p4d"), "skipped"),
        (operation_failed("EC2 refuses"), "failed"),
        (KeyboardInterrupt(), "failed"),
        (ValueError("a mistake"), "failed"),
    ],
)
def test_only_a_failure_ends_the_walk(
    asked: Acceptance, error: BaseException, outcome: str
) -> None:
    def fail(made: Acceptance) -> str:
        raise error

    first = replace(STEPS[0], do=fail)
    after = [replace(STEPS[0], do=lambda made: "", cleans=cleans) for cleans in (False, True)]
    results = [result.outcome for result in walk(asked, [first, *after], 1)]
    assert results == [outcome, "passed" if outcome == "skipped" else "skipped", "passed"]


IDS = {
    "ami-0123456789abcdef0 of i-01234567, not ami-0fedcba9876543210": "ami-1 of i-1, not ami-2",
    "ami-01234567 ami-01234567": "ami-1 ami-1",
    "ami-0a41f111122223333 in 111122223333": "ami-1 in account-1",
    "arn:aws:sts::111122223333:assumed-role/alice/me may not": "identity-1 may not",
    "bucket ami-kiln-fleet-111122223333-us-east-1": "bucket ami-kiln-fleet-account-1-us-east-1",
    "203.0.113.7 with EFA 1.51.0 and driver 580.178.04": "address-1 with EFA 1.51.0 and driver 580.178.04",  # noqa: E501
    "command 01234567-89ab-cdef-0123-456789abcdef": "command request-1",
    f"see {Path.home()}/x": "see ~/x",
}


@pytest.mark.parametrize(("text", "shown"), IDS.items())
def test_ids_become_placeholders(text: str, shown: str) -> None:
    assert without_ids(text) == shown


def test_evidence_becomes_the_test_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Nothing was run in an AWS account" in status_text(tmp_path)
    monkeypatch.setattr(evidence, "FOLDER", tmp_path / "evidence")
    step = StepResult(id="build", outcome="failed", detail="ami-01234567: a|b", seconds=3, usd=1.5)
    facts = {"date": "2026-12-01", "region": HOME, "second_region": OTHER, "git_commit": "c0ffee0"}
    path = write_evidence(Evidence(**facts, rows=("a-row",), steps=(step,)))
    assert path.name == "2026-12-01-us-east-1.json"
    text = status_text(path.parent)
    assert "2026-12-01, us-east-1 and eu-west-1, commit c0ffee0: a-row, $1.50" in text
    assert "| `build` | failed | 3 | ami-1: a\\|b |" in text


@pytest.fixture
def with_stack(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """CloudFormation, which the lab has not: the names of the stacks that are there."""
    there: list[str] = []

    def deploy(target: Target, name: str, *_: Any, **more: Any) -> dict[str, str]:
        there.append(name)
        board = json.dumps({"widgets": [{}, {}]})
        client("cloudwatch").put_dashboard(DashboardName=f"GPU-{name}", DashboardBody=board)
        client("iam").create_instance_profile(InstanceProfileName=f"{name}-profile")
        return {}

    def find(target: Target, name: str) -> Any:
        values = {"InstanceProfile": f"{name}-profile", "DashboardName": f"GPU-{name}"}
        values["EventLogGroup"] = "/ec2/accelerated/accel-event-log"
        outputs = [{"OutputKey": key, "OutputValue": values[key]} for key in values]
        return {"Outputs": outputs, "StackStatus": "CREATE_COMPLETE"} if name in there else None

    def remove(target: Target, name: str, say: Any) -> bool:
        there.remove(name)
        return True

    monkeypatch.setattr(stacks, "deploy_stack", deploy)
    monkeypatch.setattr(stacks, "find_stack", find)
    monkeypatch.setattr(stacks, "remove_stack", remove)
    return there


def reporting(client: Client, ids: list[str], commands: list[str]) -> None:
    """Send the event that a command has written, as the CloudWatch agent does."""
    assert all("NVRM: Xid (PCI:" in command for command in commands)
    logs, group, now = client("logs"), "/ec2/accelerated/accel-event-log", int(time.time())
    logs.create_log_group(logGroupName=group)
    metric = {"MetricName": "nvidia_smi_memory_total", "Value": 1.0}
    for each in ids:
        stream = {"logGroupName": group, "logStreamName": each}
        logs.create_log_stream(**stream)
        found = re.search("name=([^,]*)", commands[0])
        line = json.dumps({"process": found and found[1]})
        logs.put_log_events(**stream, logEvents=[{"timestamp": now * 1000, "message": line}])
        of_it = {**metric, "Dimensions": [{"Name": "InstanceId", "Value": each}]}
        client("cloudwatch").put_metric_data(Namespace="CWAgent", MetricData=[of_it])


def test_walk_builds_reports_and_deletes_its_stack(
    client: Client,
    asked: Acceptance,
    bake: Bake,
    with_stack: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    days, installed = itertools.count(2), list[FleetMachine]()

    def built(recipes: list[Recipe], options: Options, *_: Any, **more: Any) -> Outcome:
        monkeypatch.setenv("SSH", options.account(recipes[0]).ssh_interface or "")
        ami_id = bake(next(days))
        (record,) = (each for each in all_of(RECIPE.name) if each.ami_id == ami_id)
        return Outcome(1, (record,), {})

    def install(target: Target, found: list[FleetMachine], *_: Any) -> Installation:
        installed.extend(found)
        return Installation([], stopped=False)

    def uninstall(target: Target, found: list[FleetMachine], say: Any) -> dict[str, Any]:
        installed.remove(*found)
        return {}

    def run(target: Target, document: Any, batches: Any, **more: Any) -> dict[str, Any]:
        ((ids, parameters),) = batches
        reporting(client, ids, parameters["commands"])
        return {}

    def managed(target: Target, ids: list[str]) -> dict[str, dict[str, str]]:
        return {each: {"PingStatus": "Online"} for each in ids}

    monkeypatch.setattr("kiln.pipeline.build.build_recipes", built)
    monkeypatch.setattr("kiln.preflight.ask.ask", lambda *_, **more: [])
    monkeypatch.setattr("kiln.base.needs.ensure", lambda *_, **more: None)
    monkeypatch.setattr(machines, "run_command", run)
    monkeypatch.setattr(machines, "managed_machines", managed)
    monkeypatch.setattr(acceptance_steps, "_PLAIN", AL2)
    monkeypatch.setattr("kiln.fleet.install.install_fleet", install)
    monkeypatch.setattr("kiln.fleet.install.uninstall_fleet", uninstall)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    before = left(client)
    done = accept(replace(asked, ami=None), 10)
    assert {step: how for step, how in outcomes(done).items() if how != "passed"} == {
        "mig": "skipped"
    }
    assert {step.id: step.detail for step in done.steps}["stack"] == "its dashboard has 2 widgets"
    assert os.environ["SSH"] == "session_manager"
    assert not with_stack
    assert not installed
    assert left(client) == before
    assert client("logs").describe_log_groups()["logGroups"] == []
