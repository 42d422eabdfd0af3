"""The role of an instance's profile, as programs in a guest get and use it: nothing is set there
but what EC2 sets, and they ask AWS's own host names."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from conftest import Guest, launching

IMDS = "http://169.254.169.254/latest"
TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": {
            "Effect": "Allow",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Action": "sts:AssumeRole",
        },
    }
)


@pytest.fixture(scope="module")
def iam(client: Callable[[str], Any]) -> Any:
    return client("iam")


@pytest.fixture(scope="module")
def profile(iam: Any) -> Iterator[Callable[[str], str]]:
    """Makes an instance profile with a role of the same name; all are deleted after the tests."""
    made: list[str] = []

    def make(kind: str) -> str:
        name = f"{kind}-{time.time_ns()}"
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
        iam.create_instance_profile(InstanceProfileName=name)
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
        made.append(name)
        return name

    yield make
    for name in made:
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
        iam.delete_instance_profile(InstanceProfileName=name)
        iam.delete_role(RoleName=name)


@pytest.fixture(scope="module")
def worker(
    ec2: Any, key: tuple[str, Path], source_ami: str, profile: Callable[[str], str]
) -> Iterator[tuple[Guest, str]]:
    """An instance that was launched with a profile, and the profile's name."""
    name = profile("worker")
    with launching(ec2, key, source_ami) as launch:
        yield launch(IamInstanceProfile={"Name": name}), name


def imds(guest: Any, path: str) -> str:
    """What the guest's IMDS answers, with a token; "" for a 404."""
    header = "X-aws-ec2-metadata-token"
    token = f"$(curl -sX PUT {IMDS}/api/token -H '{header}-ttl-seconds: 60')"
    return str(guest.run(f'curl -sf -H "{header}: {token}" {IMDS}/meta-data/{path}').stdout)


def credentials(guest: Any, role: str) -> dict[str, str]:
    return json.loads(imds(guest, f"iam/security-credentials/{role}"))


def ask(guest: Any, service: str, query: str, token: str = "", key: str = "any") -> str:
    """What AWS's own host answers to a call of a program in the guest."""
    scope = f"{key}/20260101/us-east-1/{service}/aws4_request"
    headers = f"-H 'Authorization: AWS4-HMAC-SHA256 Credential={scope}, Signature=none'"
    if token:
        headers += f" -H 'X-Amz-Security-Token: {token}'"
    url = f"https://{service}.us-east-1.amazonaws.com/?{query}"
    return str(guest.run(f"curl -s {headers} '{url}'").stdout)


def test_a_program_in_a_guest_is_the_instances_role(worker) -> None:
    guest, name = worker
    assert imds(guest, "iam/") == "info\nsecurity-credentials/"
    assert imds(guest, "iam/security-credentials/") == name
    info = json.loads(imds(guest, "iam/info"))
    assert info["Code"] == "Success"
    assert info["InstanceProfileArn"].endswith(f":instance-profile/{name}")
    key = credentials(guest, name)
    assert (key["Code"], key["Type"]) == ("Success", "AWS-HMAC")
    query = "Action=GetCallerIdentity&Version=2011-06-15"
    asked = ask(guest, "sts", query, key["Token"], key["AccessKeyId"])
    assert f":assumed-role/{name}/{guest.id}</Arn>" in asked


def test_role_token_opens_no_lab_call_and_no_token_opens_nothing(worker) -> None:
    guest, _ = worker
    url = "https://ec2.us-east-1.amazonaws.com/_lab/down"
    assert "not for guests" in guest.run(f"curl -s -d '{{}}' {url}").stdout
    query = "Action=DescribeInstances&Version=2016-11-15"
    for token in ("", "another"):
        assert "<Code>AuthFailure</Code>" in ask(guest, "ec2", query, token)


def test_a_profile_that_does_not_exist_is_refused_at_launch(launch) -> None:
    with pytest.raises(ClientError, match="Invalid IAM Instance Profile name") as refused:
        launch(IamInstanceProfile={"Name": "nobody"})
    assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"


def test_a_profile_goes_comes_and_changes_while_the_instance_runs(
    ec2, of_template, profile
) -> None:
    guest, *_ = of_template
    first, other = profile("one"), profile("other")
    filters = [{"Name": "instance-id", "Values": [guest.id]}]
    (found,) = ec2.describe_iam_instance_profile_associations(Filters=filters)[
        "IamInstanceProfileAssociations"
    ]
    ec2.disassociate_iam_instance_profile(AssociationId=found["AssociationId"])
    assert imds(guest, "iam/") == ""
    made = ec2.associate_iam_instance_profile(
        InstanceId=guest.id, IamInstanceProfile={"Name": first}
    )["IamInstanceProfileAssociation"]
    assert imds(guest, "iam/security-credentials/") == first
    changed = ec2.replace_iam_instance_profile_association(
        AssociationId=made["AssociationId"], IamInstanceProfile={"Name": other}
    )["IamInstanceProfileAssociation"]
    assert changed["AssociationId"] != made["AssociationId"]
    assert imds(guest, "iam/security-credentials/") == other
    (described,) = ec2.describe_instances(InstanceIds=[guest.id])["Reservations"][0]["Instances"]
    assert described["IamInstanceProfile"]["Arn"].endswith(f"/{other}")
    ec2.disassociate_iam_instance_profile(AssociationId=changed["AssociationId"])
    assert imds(guest, "iam/") == ""
