"""A lab without guests for the client walks: the API and all behind it, but nothing boots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from devel import lab_api

AL2023 = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-6.1-{}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the lab keeps its files."""
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Callable[..., Any]]:
    """A boto3 client by service and region. The lab's log must hold no traceback afterwards."""
    with lab_api.serving(folder) as endpoint:
        yield partial(lab_api.client, endpoint)
        assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture(scope="module")
def ec2(client: Callable[..., Any]) -> Any:
    return client("ec2")


@pytest.fixture(scope="module")
def parents(client: Callable[..., Any]) -> dict[str, str]:
    """The public AMI of Amazon Linux 2023 by processor."""
    ssm = client("ssm")
    return {
        arch: ssm.get_parameter(Name=AL2023.format(arch))["Parameter"]["Value"]
        for arch in ("x86_64", "arm64")
    }


@pytest.fixture(scope="module")
def parent(parents: dict[str, str]) -> str:
    return parents["x86_64"]


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

    def stopped(self, instance_id: str) -> Any:
        self.ec2.stop_instances(InstanceIds=[instance_id])
        return self.until(instance_id, "stopped")

    def terminated(self, instance_id: str) -> Any:
        self.ec2.terminate_instances(InstanceIds=[instance_id])
        return self.until(instance_id, "terminated")

    def image(self, image_id: str, **more: Any) -> Any:
        return self.ec2.describe_images(ImageIds=[image_id], **more)["Images"][0]

    def baked(self, **how: Any) -> Any:
        """An AMI of the account."""
        instance = how.pop("InstanceId", None) or self.launched()["InstanceId"]
        how.setdefault("Name", f"baked-{next(self._names)}")
        made = self.ec2.create_image(InstanceId=instance, **how)["ImageId"]
        for _ in range(6000):
            if self.image(made)["State"] != "pending":
                return self.image(made)
            time.sleep(0.01)
        raise AssertionError(f"{made} stays pending")


@pytest.fixture(scope="module")
def walk(ec2: Any, parent: str) -> Walk:
    return Walk(ec2, parent)


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
