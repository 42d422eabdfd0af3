"""A night on three machines that share AWS alone: plan, an item each, finish. One machine is lost
midway. Each runs deploy/'s buildspec commands with its role's credentials, which may do what
docs/iam-*.json allow, and asks AWS's host names; nothing tells it that it is in a lab.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import workers
from conftest import inventory, launching
from workers import BUCKET, Worker

from kiln.publish.sweep import leftovers, sweep
from lab.target import LabTarget

pytestmark = pytest.mark.all
ROWS = [
    {"distro": "al2", "stack": "classic"},
    {"distro": "al2", "stack": "al2_last"},
    {"distro": "debian12", "stack": "debian"},
]
PLAN = "./invoke nightly.plan --target aws --json"
LINES = ["al2/classic/base/x86_64", "al2/al2_last/base/x86_64", "debian12/debian/base/x86_64"]
FINISH = "./invoke nightly.finish --target aws --json"


@dataclass
class Night:
    """A night that is over: what was planned, what its end reported, and what there was between."""

    plan: dict[str, Any]
    finish: list[dict[str, Any]]
    again: dict[str, Any]
    left_by_the_lost: set[str]
    seconds: dict[str, float]


@pytest.fixture(scope="module")
def worker(
    lab: Any, ec2: Any, client: Any, key: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Worker]]:
    """Makes a worker; all are gone after the module."""
    client("s3").create_bucket(Bucket=BUCKET)
    profiles = workers.roles(client)
    bundle = workers.repository(tmp_path_factory.mktemp("images"), ROWS)
    with (
        workers.image(ec2, key, bundle) as ami,
        launching(ec2, key, ami) as launch,
        ExitStack() as ways,
    ):

        def made(*, planner: bool = False) -> Worker:
            guest = launch(
                user=workers.USER,
                InstanceType="t3.micro",
                IamInstanceProfile={"Name": profiles[planner]},
            )
            ways.enter_context(workers.way_to_instances(lab, guest))
            return Worker(guest)

        yield made


@pytest.fixture(scope="module")
def night(worker: Callable[..., Worker], ec2: Any) -> Night:
    planner, three = worker(planner=True), [worker() for _ in range(3)]
    plan = json.loads(planner.run(PLAN))
    before = inventory(ec2)
    seconds = {"plan to the last item": time.monotonic()}
    items = [item["command"] for item in plan["items"]]
    running = [worker.start(item) for worker, item in zip(three, items, strict=True)]
    first = plan["items"][0]["row"]
    while not _launched(ec2, first):
        if running[0].poll() is not None:
            workers.ended(running[0])
        time.sleep(1)
    workers.lost(ec2, three[0])
    for process in running[1:]:
        workers.ended(process)
    running[0].communicate()
    assert running[0].returncode != 0
    left = inventory(ec2)["instances"] - before["instances"]
    # An engine gives the item to another machine.
    workers.ended(three[1].start(items[0]))
    seconds["plan to the last item"] = time.monotonic() - seconds["plan to the last item"]
    planner.run(f"cat > plan.json <<'END'\n{json.dumps(plan)}\nEND\n")
    finish = json.loads(planner.run(f"{FINISH} --plan plan.json"))
    again = json.loads(planner.run(PLAN))
    print(seconds)
    return Night(plan, finish, again, left, seconds)


def _launched(ec2: Any, row: str) -> bool:
    found = ec2.describe_instances(Filters=[{"Name": "tag:kiln:recipe", "Values": [row]}])
    return bool(found["Reservations"])


def test_each_row_is_an_item_of_its_own(night: Night) -> None:
    assert [item["row"].split("-")[0] for item in night.plan["items"]] == ["al2", "al2", "debian12"]
    for item in night.plan["items"]:
        assert f"--records-bucket {BUCKET}" in item["command"]


def test_after_a_machine_was_lost_the_night_ends_as_on_one(night: Night, client: Any) -> None:
    assert [(entry["row"], entry["action"]) for entry in night.finish] == [
        (item["row"], "built") for item in night.plan["items"]
    ]
    for result in night.finish:
        assert result["why"] == "it has no verified AMI"
        assert result["checks"].endswith(" passed, 0 failed")
        assert result["seconds"]
        name = f"/ami-kiln/{result['line']}/nightly/image_id"
        held = client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
        assert held == result["ami_id"]


def test_the_next_night_has_nothing_to_do(night: Night) -> None:
    assert night.again["items"] == []
    assert len(night.again["skipped"]) == len(ROWS)


def test_each_run_that_ended_has_its_record_in_the_bucket(night: Night, client: Any) -> None:
    listed = client("s3").list_objects_v2(Bucket=BUCKET, Prefix="runs/")["Contents"]
    rows = sorted(str(Path(image["Key"]).parts[1]) for image in listed)
    assert rows == sorted(item["row"] for item in night.plan["items"])


def test_a_sweep_removes_what_the_lost_machine_left(night: Night, ec2: Any, lab: Any) -> None:
    assert len(night.left_by_the_lost) == 1, "the build instance of the item that was lost"
    place = LabTarget("a test", "us-east-1", endpoint=lab.endpoint)
    swept = sweep(place, leftovers(place, ["us-east-1"], timedelta()))
    assert not [resource.error for resource in swept if resource.error]
    assert night.left_by_the_lost <= {resource.id for resource in swept}
    assert {"key pair", "security group"} <= {resource.kind for resource in swept}
    tagged = {"Name": "tag-key", "Values": ["kiln:run-id"]}
    running = {"Name": "instance-state-name", "Values": ["running"]}
    assert ec2.describe_instances(Filters=[tagged, running])["Reservations"] == []
