"""A document of `consume`, applied: what it launches is what the channel holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kiln.base.errors import KilnError
from kiln.consume import KINDS, launch_request, pinned
from tests.unit.publish.channel import AWS, HOME, LINE, Bake, back, published

pytestmark = pytest.mark.slow


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
        KINDS["launch-template-json"].document(launch_request(LINE, "nightly", HOME))
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


def test_a_pinned_document_holds_the_id_of_that_moment(bake: Bake) -> None:
    published(HOME, ami_id=(made := bake()))
    asked = launch_request(LINE, "nightly", HOME)
    text = KINDS["launch-template-json"].document(pinned(AWS, asked))
    assert json.loads(text)["LaunchTemplateData"]["ImageId"] == made


@pytest.mark.usefixtures("client")
def test_an_empty_channel_cannot_be_pinned() -> None:
    with pytest.raises(KilnError, match=f"nightly of {LINE} holds nothing in {HOME}") as refused:
        pinned(AWS, launch_request(LINE, "nightly", HOME))
    assert refused.value.exit_status == 1
