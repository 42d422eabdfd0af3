"""The lab's API without guests, empty channels, and verified AMIs to publish."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.waiter
import pytest

from devel import lab_api
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.pipeline.record import write_record
from kiln.publish import channels, copies
from tests.unit.publish.channel import AL2, HOME, OTHER, RECIPE, Bake, Client, versions_of
from tests.unit.records import a_record


@pytest.fixture(scope="session", autouse=True)
def _short_waits() -> Iterator[None]:
    """A waiter of botocore asks every few seconds, and the lab is done in milliseconds."""
    asleep = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, 0.02)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.waiter, "time", asleep)
        yield


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with lab_api.serving(tmp_path_factory.mktemp("lab")) as served:
        yield served


@pytest.fixture(scope="session")
def instance(endpoint: str) -> str:
    """What the AMIs are made of."""
    parent = lab_api.client(endpoint, "ssm").get_parameter(Name=AL2)["Parameter"]["Value"]
    ec2 = lab_api.client(endpoint, "ec2")
    launched = ec2.run_instances(ImageId=parent, InstanceType="t3.micro", MinCount=1, MaxCount=1)
    made = str(launched["Instances"][0]["InstanceId"])
    ec2.get_waiter("instance_running").wait(InstanceIds=[made])
    return made


@pytest.fixture
def client(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """The lab's API in the place of AWS, with empty channels; an empty build folder."""
    client = partial(lab_api.client, endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KILN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))
    monkeypatch.setattr(copies, "_APPEARS", 0.5)
    for rhythm in ("poll_seconds", "wait_seconds"):
        monkeypatch.setattr(Target, rhythm, 0.01)
    for region in (HOME, OTHER):
        ssm = client("ssm", region)
        pages = ssm.get_paginator("get_parameters_by_path").paginate(
            Path=channels.ROOT, Recursive=True
        )
        names = [parameter["Name"] for page in pages for parameter in page["Parameters"]]
        # As many as SSM takes in a call.
        for first in range(0, len(names), 10):
            ssm.delete_parameters(Names=names[first : first + 10])
    return client


@pytest.fixture
def bake(client: Client, instance: str, tmp_path: Path) -> Iterator[Bake]:
    """Make a verified AMI of the row with its record; its id. `tags` and `fields` replace some;
    `of` is another instance that it is made of.

    After the test nothing says that they and their copies are ours: later tests would judge them.
    """

    def baked(
        day: int = 1,
        tags: dict[str, str] | None = None,
        versions: Any = None,
        of: str = "",
        **fields: Any,
    ) -> str:
        ec2 = client("ec2")
        date = datetime(2026, 11, 1, tzinfo=timezone.utc) + timedelta(days=day - 1)
        run_id = f"{date:%Y%m%dT%H%M%SZ}-aaaa"
        name = f"{RECIPE.name}-{run_id}-{tmp_path.name}"
        ami_id = str(ec2.create_image(InstanceId=of or instance, Name=name)["ImageId"])
        ec2.get_waiter("image_available").wait(
            ImageIds=[ami_id], WaiterConfig={"MaxAttempts": 6000}
        )
        carried = {
            "kiln:recipe": RECIPE.name,
            "kiln:recipe-digest": "d" * 64,
            "kiln:run-id": run_id,
            "kiln:verified": f"pass {date:%Y-%m-%dT00:10:00Z} c0ffee0",
            **(tags or {}),
        }
        ec2.create_tags(
            Resources=[ami_id], Tags=[{"Key": k, "Value": v} for k, v in carried.items() if v]
        )
        record = a_record(
            **{
                "run_id": run_id,
                "region": HOME,
                "ami_id": ami_id,
                "versions": versions or versions_of("510.47.03"),
                **fields,
            }
        )
        folder = tmp_path / "build" / RECIPE.name / run_id
        folder.mkdir(parents=True)
        write_record(Run(run_id, RECIPE.name, folder), record)
        return ami_id

    yield baked
    tagged = [{"Name": "key", "Values": ["kiln:run-id"]}]
    for region in (HOME, OTHER):
        ec2 = client("ec2", region)
        ours = [tag["ResourceId"] for tag in ec2.describe_tags(Filters=tagged)["Tags"]]
        if ours:
            ec2.delete_tags(Resources=ours, Tags=[{"Key": "kiln:run-id"}])
