"""A lab without guests: the API and all behind it, but nothing boots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from devel import lab_api
from tests.unit.lab.standin_guest import Guest

AL2023 = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-6.1-x86_64"


@pytest.fixture(scope="package")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """A boto3 client by service and region. The lab's log must hold no traceback afterwards."""
    folder = tmp_path_factory.mktemp("lab-api")
    with lab_api.serving(folder) as endpoint:
        yield partial(lab_api.client, endpoint)
        assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture(scope="package")
def account(client: Callable[..., Any]) -> Any:
    """A client of EC2 in us-east-1. (`ec2` is moto's alone: tests/unit/conftest.py.)"""
    return client("ec2")


@pytest.fixture(scope="package")
def parent(client: Callable[..., Any]) -> str:
    """The public AMI of Amazon Linux 2023."""
    return str(client("ssm").get_parameter(Name=AL2023)["Parameter"]["Value"])


class Walk:
    """What a client does with EC2 and waits for."""

    def __init__(self, ec2: Any, parent: str) -> None:
        self.ec2, self.parent = ec2, parent
        self._names = iter(range(10_000))

    def instance(self, instance_id: str) -> Any:
        found = self.ec2.describe_instances(InstanceIds=[instance_id])
        return found["Reservations"][0]["Instances"][0]

    def launched(self, **how: Any) -> Any:
        """An instance that runs."""
        if "LaunchTemplate" not in how:
            how = {"ImageId": self.parent, "InstanceType": "t3.micro"} | how
        made = self.ec2.run_instances(**({"MinCount": 1, "MaxCount": 1} | how))
        return self.until(made["Instances"][0]["InstanceId"], "running")

    def until(self, instance_id: str, state: str) -> Any:
        for _ in range(6000):
            found = self.instance(instance_id)
            if found["State"]["Name"] == state:
                return found
            time.sleep(0.01)
        raise AssertionError(f"{instance_id} is {found['State']['Name']}, not {state}")

    def terminated(self, instance_id: str) -> Any:
        self.ec2.terminate_instances(InstanceIds=[instance_id])
        return self.until(instance_id, "terminated")

    def image(self, image_id: str, **more: Any) -> Any:
        return self.ec2.describe_images(ImageIds=[image_id], **more)["Images"][0]

    def snapshot(self, image: Any) -> Any:
        wanted = image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
        return self.ec2.describe_snapshots(SnapshotIds=[wanted])["Snapshots"][0]

    def available(self, image_id: str) -> Any:
        for _ in range(6000):
            if self.image(image_id)["State"] != "pending":
                return self.image(image_id)
            time.sleep(0.01)
        raise AssertionError(f"{image_id} stays pending")

    def baked(self, **how: Any) -> Any:
        """An AMI of the account."""
        instance = how.pop("InstanceId", None) or self.launched()["InstanceId"]
        how.setdefault("Name", f"baked-{next(self._names)}")
        return self.available(self.ec2.create_image(InstanceId=instance, **how)["ImageId"])

    def copied(self, source: Any, **how: Any) -> Any:
        """A copy of an image of us-east-1."""
        how = {"SourceRegion": "us-east-1", "Name": f"copy-{next(self._names)}"} | how
        return self.available(self.ec2.copy_image(SourceImageId=source, **how)["ImageId"])


@pytest.fixture(scope="package")
def walk(account: Any, parent: str) -> Walk:
    return Walk(account, parent)


@pytest.fixture(scope="package")
def walk_in(client: Callable[..., Any]) -> Callable[[str], Walk]:
    """The same in another region, without a parent."""
    return lambda region: Walk(client("ec2", region), "")


def refused(call: Callable[..., Any], **how: Any) -> tuple[str, str]:
    """The code and message with which EC2 refuses a call."""
    with pytest.raises(ClientError) as caught:
        call(**how)
    answer = caught.value.response
    assert 400 <= answer["ResponseMetadata"]["HTTPStatusCode"] < 500
    return answer["Error"]["Code"], answer["Error"]["Message"]


@pytest.fixture(scope="session", name="refused")
def _refused() -> Callable[..., tuple[str, str]]:
    return refused


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Guest]:
    """Return what lays the stand-ins down: for a p4d with driver 580 unless told otherwise."""

    def _make(
        instance_type: str = "p4d.24xlarge", driver: str = "580.173.02", **more: object
    ) -> Guest:
        return Guest(tmp_path, instance_type, driver, **more)

    return _make
