"""A document of `consume`, applied: what it launches is what the channel holds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kiln.base.errors import KilnError
from kiln.consume.kinds import KINDS, pinned, write_document
from kiln.consume.launch_request import launch_request
from tests.unit.publish.channel import AWS, HOME, LINE, Bake, back, published


def launched(client: Callable[..., Any], name: str) -> Any:
    ec2 = client("ec2")
    template = {"LaunchTemplateName": name}
    made = ec2.run_instances(LaunchTemplate=template, MinCount=1, MaxCount=1)["Instances"][0]
    ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
    return made


def test_a_launch_template_launches_what_the_channel_holds_now(
    client: Callable[..., Any], bake: Bake
) -> None:
    first, second = bake(1), bake(2)
    published(HOME, ami_id=first)
    template = json.loads(
        write_document(KINDS["launch-template-json"], launch_request(LINE, "nightly", HOME))
    )
    vpc = client("ec2").describe_security_groups()["SecurityGroups"][0]["GroupId"]
    template["LaunchTemplateData"]["SecurityGroupIds"] = [vpc]
    client("ec2").create_launch_template(**template)
    name = template["LaunchTemplateName"]
    assert launched(client, name)["ImageId"] == first
    published(HOME, ami_id=second)
    instance = launched(client, name)
    assert instance["ImageId"] == second
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert {"Key": "kiln:line", "Value": LINE} in instance["Tags"]
    back("nightly")
    assert launched(client, name)["ImageId"] == first


def groups(client: Callable[..., Any]) -> dict[str, str]:
    """The default network, as the documents' parameters."""
    vpc = client("ec2").describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])
    of_vpc = [{"Name": "vpc-id", "Values": [vpc["Vpcs"][0]["VpcId"]]}]
    subnet = client("ec2").describe_subnets(Filters=of_vpc)["Subnets"][0]["SubnetId"]
    group = client("ec2").describe_security_groups(Filters=of_vpc)["SecurityGroups"][0]["GroupId"]
    return {"Subnets": subnet, "SecurityGroups": group}


def settled(client: Callable[..., Any], name: str, status: str) -> None:
    end = time.monotonic() + 60
    while (found := client("cloudformation").describe_stacks(StackName=name)["Stacks"][0])[
        "StackStatus"
    ].endswith("PROGRESS"):
        assert time.monotonic() < end
        time.sleep(0.05)
    events = client("cloudformation").describe_stack_events(StackName=name)["StackEvents"]
    assert found["StackStatus"] == status, [event.get("ResourceStatusReason") for event in events]


def in_group(client: Callable[..., Any]) -> Any:
    """The one instance of the one Auto Scaling group."""
    (group,) = client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    ids = [each["InstanceId"] for each in group["Instances"]]
    ((found,),) = (
        reservation["Instances"]
        for reservation in client("ec2").describe_instances(InstanceIds=ids)["Reservations"]
    )
    return found


def test_the_comment_of_a_stack_deploys_it_by_awss_own_cli(
    client: Callable[..., Any], bake: Bake, endpoint: str, tmp_path: Path
) -> None:
    """Its first lines, as they stand; again with nothing to change, and after a promotion."""
    if not shutil.which("aws"):
        pytest.skip("needs the AWS CLI on PATH")
    first, second = bake(1), bake(2)
    published(HOME, ami_id=first)
    text = write_document(KINDS["cloudformation"], launch_request(LINE, "nightly", HOME))
    (tmp_path / "group.yaml").write_text(text)
    command = "".join(line.removeprefix("# ") for line in text.splitlines(keepends=True)[:2])
    command = command.replace("THIS-FILE", "group.yaml")
    for name, value in groups(client).items():
        command = command.replace(f"{name}=…", f"{name}={value}")

    def deployed() -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": HOME},
        )  # fmt: skip
        return done.stdout + done.stderr

    assert "Successfully created/updated stack" in deployed()
    assert in_group(client)["ImageId"] == first
    assert "No changes to deploy" in deployed()
    published(HOME, ami_id=second)
    assert "Successfully created/updated stack" in deployed()
    assert in_group(client)["ImageId"] == second
    gone(client, command.split("--stack-name ")[1].split()[0])


def gone(client: Callable[..., Any], name: str) -> None:
    client("cloudformation").delete_stack(StackName=name)
    end = time.monotonic() + 60
    while client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_stack_takes_the_channels_image_when_it_is_updated(
    client: Callable[..., Any], bake: Bake
) -> None:
    """An Auto Scaling group: the same template again after a promotion replaces its instance."""
    first, second = bake(1), bake(2)
    published(HOME, ami_id=first)
    text = write_document(KINDS["cloudformation"], launch_request(LINE, "nightly", HOME))
    network = groups(client)
    given = [{"ParameterKey": key, "ParameterValue": value} for key, value in network.items()]
    stacks = client("cloudformation")
    stacks.create_stack(StackName="follows", TemplateBody=text, Parameters=given)
    settled(client, "follows", "CREATE_COMPLETE")
    instance = in_group(client)
    assert (instance["ImageId"], instance["SubnetId"]) == (first, network["Subnets"])
    assert instance["MetadataOptions"]["InstanceMetadataTags"] == "enabled"
    with pytest.raises(ClientError, match="No updates are to be performed"):
        stacks.update_stack(StackName="follows", TemplateBody=text, Parameters=given)
    published(HOME, ami_id=second)
    stacks.update_stack(StackName="follows", TemplateBody=text, Parameters=given)
    settled(client, "follows", "UPDATE_COMPLETE")
    assert in_group(client)["ImageId"] == second
    gone(client, "follows")


def test_the_command_launches_by_awss_own_cli(
    client: Callable[..., Any], bake: Bake, endpoint: str
) -> None:
    if not shutil.which("aws"):
        pytest.skip("needs the AWS CLI on PATH")
    published(HOME, ami_id=(made := bake()))
    text = write_document(KINDS["cli"], launch_request(LINE, "nightly", HOME))
    network = groups(client)
    client("ec2").create_key_pair(KeyName="of-the-command")
    done = subprocess.run(
        ["bash"],
        input=text, capture_output=True, text=True, check=False,
        env={**os.environ, "AWS_ENDPOINT_URL": endpoint, "KEY": "of-the-command",
             "SUBNET": network["Subnets"], "GROUP": network["SecurityGroups"]},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (instance,) = json.loads(done.stdout)["Instances"]
    client("ec2").terminate_instances(InstanceIds=[instance["InstanceId"]])
    assert (instance["ImageId"], instance["SubnetId"]) == (made, network["Subnets"])
    assert instance["MetadataOptions"]["HttpTokens"] == "required"


def test_a_pinned_document_holds_the_id_of_that_moment(bake: Bake) -> None:
    published(HOME, ami_id=(made := bake()))
    asked = launch_request(LINE, "nightly", HOME)
    text = write_document(KINDS["launch-template-json"], pinned(AWS, asked))
    assert json.loads(text)["LaunchTemplateData"]["ImageId"] == made


def test_an_empty_channel_cannot_be_pinned() -> None:
    with pytest.raises(KilnError, match=f"nightly of {LINE} holds nothing in {HOME}") as refused:
        pinned(AWS, launch_request(LINE, "nightly", HOME))
    assert refused.value.exit_status == 1
