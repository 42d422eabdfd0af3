"""The stack of the nights, made in the lab's CloudFormation by the user's own commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kiln.base.paths import ROOT
from tests.unit import commands

Client = Callable[..., Any]
STACK = "nights"
REPOSITORY = "https://git.example.com/amis"


def deploy(*flags: str) -> tuple[dict[str, Any], list[str]]:
    """What deploy.codebuild prints, and the events that it told."""
    done = commands.invoke("deploy.codebuild", "--stack", STACK, "--json", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr.splitlines()


def test_the_stack_of_the_nights_comes_changes_and_goes_but_for_its_bucket(client: Client) -> None:
    made, events = deploy("--repository", REPOSITORY, "--email", "team@example.com")
    assert events[1].startswith("CREATE_IN_PROGRESS  AWS::CloudFormation::Stack  nights")
    assert events[-1] == "CREATE_COMPLETE  AWS::CloudFormation::Stack  nights"
    outputs = made["outputs"]
    planner, worker, bucket = outputs["Planner"], f"{STACK}-worker", outputs["Bucket"]
    s3, codebuild = client("s3"), client("codebuild")
    # What the nights need of the bucket, and what the projects are.
    assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    rules = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rules[0]["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    blocked = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    assert all(blocked.values())
    policy = json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"])
    assert policy["Statement"][0]["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    found = codebuild.batch_get_projects(names=[planner, worker])["projects"]
    variables = {
        project["name"]: project["environment"]["environmentVariables"] for project in found
    }
    assert {"name": "KILN_ENGINE_PROJECT", "value": worker} in variables[planner]
    assert {"name": "KILN_AWS_RECORDS_BUCKET", "value": bucket} in variables[worker]
    assert {project["source"]["location"] for project in found} == {REPOSITORY}
    # Who works there may do what the documentation says, and what a build in CodeBuild needs.
    role = found[1]["serviceRole"].rpartition("/")[2]
    known = ("iam-policy.json", "iam-publish.json", "iam-policy-packer-1.6.json")
    documented = [json.loads((ROOT / "docs" / name).read_text()) for name in known]
    allowed = policies(client, role)
    assert [policy for policy in documented if policy not in allowed] == []
    assert len(allowed) == 4
    (schedule,) = schedules(client)
    assert schedule["Target"]["Arn"] == found[0]["arn"]
    assert schedule["ScheduleExpression"] == "cron(0 2 * * ? *)"
    subscribed = client("sns").list_subscriptions_by_topic(TopicArn=outputs["Topic"])
    assert [subscription["Endpoint"] for subscription in subscribed["Subscriptions"]] == [
        "team@example.com"
    ]

    _, events = deploy("--timezone", "Europe/Berlin", "--image", "kiln:1")
    assert [line for line in events if line.startswith(("Add", "Modify", "Remove"))] == [
        "Modify  AWS::IAM::Role  WorkerRole  (ManagedPolicyArns)",
        "Modify  AWS::CodeBuild::Project  Worker  (Environment)",
        "Modify  AWS::CodeBuild::Project  Planner  (Environment)",
        "Modify  AWS::Scheduler::Schedule  NightSchedule  (ScheduleExpressionTimezone)",
        "Remove  AWS::IAM::ManagedPolicy  OldPackerPolicy",
    ]
    assert events[-1] == "UPDATE_COMPLETE  AWS::CloudFormation::Stack  nights"
    (changed,) = codebuild.batch_get_projects(names=[planner])["projects"]
    assert (changed["environment"]["image"], changed["sourceVersion"]) == ("kiln:1", "main")
    # An image with a newer Packer needs less.
    assert documented[2] not in policies(client, role)
    (schedule,) = schedules(client)
    assert schedule["ScheduleExpressionTimezone"] == "Europe/Berlin"

    s3.put_object(Bucket=bucket, Key="runs/a/b/record.json", Body=b"{}")
    gone, events = deploy("--delete")
    assert gone == {"stack": STACK, "deleted": True}
    assert "DELETE_SKIPPED  AWS::S3::Bucket  Bucket" in events
    assert codebuild.batch_get_projects(names=[planner, worker])["projects"] == []
    assert schedules(client) == []
    with pytest.raises(ClientError, match="NoSuchEntity"):
        client("iam").get_role(RoleName=role)
    assert s3.get_object(Bucket=bucket, Key="runs/a/b/record.json")["Body"].read() == b"{}"
    assert deploy("--delete")[0] == {"stack": STACK, "deleted": False}


def policies(client: Client, role: str) -> list[Any]:
    """The documents of a role's managed policies."""
    iam, found = client("iam"), []
    for policy in iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]:
        arn = policy["PolicyArn"]
        version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
        shown = iam.get_policy_version(PolicyArn=arn, VersionId=version)
        found.append(shown["PolicyVersion"]["Document"])
    return found


def schedules(client: Client) -> list[Any]:
    found = client("scheduler").list_schedules()["Schedules"]
    return [client("scheduler").get_schedule(Name=schedule["Name"]) for schedule in found]


def test_the_labs_codebuild_says_that_it_runs_no_build(client: Client) -> None:
    """moto's says that each has succeeded."""
    for call in ("start_build", "start_build_batch"):
        with pytest.raises(ClientError, match="no build runs in the lab's CodeBuild"):
            getattr(client("codebuild"), call)(projectName="nights-planner")
