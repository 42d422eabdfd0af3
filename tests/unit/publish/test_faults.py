"""Whatever ends a task midway, consumers keep an image that launches, and the next run finishes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any

import pytest
from botocore.client import BaseClient

from kiln.base.errors import KilnError
from kiln.base.tags import INPUT_DIGEST
from kiln.base.tags import LINE as LINE_TAG
from kiln.base.vocabulary import utc_now
from kiln.cloud import images
from kiln.matrix.model import Publish
from kiln.pipeline import plan as planning
from kiln.publish import channels
from kiln.publish import promote as moves
from kiln.publish.night import plan_night, run_night
from kiln.publish.publish import Publication
from kiln.publish.retire import Retirement, plan_retirement, retire
from kiln.publish.sweep import leftovers, sweep
from tests.unit.publish import faults
from tests.unit.publish.channel import (
    AWS,
    HOME,
    LINE,
    OTHER,
    RECIPE,
    Bake,
    Client,
    a_line,
    back,
    described,
    promoted,
    published,
    resolved,
)
from tests.unit.publish.faults import Killed, faulty

NAMES = (channels.image_parameter, channels.release_parameter)
# KILN_PUBLISH_KILLS=all kills every task at every call; otherwise at some.
ALL = os.environ.get("KILN_PUBLISH_KILLS") == "all"
# What no two cases may share: they run in one lab.
_NUMBERS = count()


@dataclass
class World:
    """Two releases in two regions: `old`, then `new`, by region."""

    client: Client
    bake: Bake
    old: dict[str, str] = field(default_factory=dict)
    new: dict[str, str] = field(default_factory=dict)
    days: int = 0

    def baked(self, **tags: str) -> str:
        self.days += 1
        return self.bake(self.days, tags=tags)

    def holds(self, channel: str) -> dict[str, str]:
        return {region: resolved(self.client, channel, region) for region in (HOME, OTHER)}

    def require_launchable(self, *names: str) -> None:
        """Every channel names one of the two releases in each region, and it launches."""
        for name in names:
            for region, ami_id in self.holds(name).items():
                assert ami_id in (self.old[region], self.new[region])
                assert described(self.client, ami_id, region)["State"] == "available"


@dataclass(frozen=True)
class Task:
    """A task: `run` it; `finish` looks at what an ended one has left, lets it finish, and sets all
    back for another."""

    run: Callable[[], Any]
    finish: Callable[[], None]


def releases(world: World) -> None:
    """The first release is in candidate, the second in nightly only."""
    world.baked()
    published(OTHER)
    world.old = world.holds("nightly")
    promoted("candidate")
    world.baked()
    published(OTHER)
    world.new = world.holds("nightly")


def publishing(world: World) -> Task:
    releases(world)
    source = {"next": world.new[HOME]}

    def run() -> None:
        published(OTHER, ami_id=source["next"])

    def finish() -> None:
        before = world.new
        held = world.holds("nightly")
        assert held[HOME] in (before[HOME], source["next"])
        copy = described(world.client, held[OTHER], OTHER)
        assert copy["State"] == "available"
        run()
        world.new = world.holds("nightly")
        assert world.new[HOME] == source["next"]
        copies = world.client("ec2", OTHER).describe_images(
            Owners=["self"], Filters=[{"Name": "tag:kiln:source-image", "Values": [source["next"]]}]
        )["Images"]
        assert [copy["ImageId"] for copy in copies] == [world.new[OTHER]], "copied twice"
        source["next"] = world.baked()

    source["next"] = world.baked()
    return Task(run, finish)


def promoting(world: World) -> Task:
    releases(world)

    def finish() -> None:
        world.require_launchable("nightly", "candidate")
        assert promoted("candidate").allowed
        assert world.holds("candidate") == world.new
        back("candidate", to=world.old[HOME])

    return Task(lambda: promoted("candidate"), finish)


def rolling_back(world: World) -> Task:
    releases(world)

    def finish() -> None:
        world.require_launchable("nightly")
        if world.holds("nightly") != world.old:
            back("nightly")
        assert world.holds("nightly") == world.old
        back("nightly", to=world.new[HOME])

    return Task(lambda: back("nightly"), finish)


def retiring(world: World) -> Task:
    """An AMI that goes all three steps, beside one that a channel holds and one tagged to stay."""
    for region in (HOME, OTHER):
        for image in images.own_images(AWS.in_region(region)):
            ec2 = world.client("ec2", region)
            ec2.disable_image_deregistration_protection(ImageId=image.ami_id)
            ec2.deregister_image(ImageId=image.ami_id)
    held = world.baked()
    kept = world.baked(**{LINE_TAG: LINE, "kiln:keep": "yes"})

    def one_that_its_channel_has_left() -> str:
        ami_id = world.baked()
        published(ami_id=ami_id)
        published(ami_id=held)
        return ami_id

    old = {"id": one_that_its_channel_has_left()}
    settings = {LINE: Publish(keep={"nightly": 1}, deprecate_after=1, deregister_after=1)}
    days = count(2, 2)

    def step() -> bool:
        """Whether there was a step to do, two days after the one before."""
        then = utc_now() + timedelta(days=next(days))
        with pytest.MonkeyPatch.context() as later:
            later.setattr("kiln.publish.retire.utc_now", lambda: then)
            return stepped()

    def stepped() -> bool:
        planned = plan_retirement(AWS, [OTHER], settings)
        assert not {held, kept} & {image.ami_id for image in planned.would}
        mine = tuple(image for image in planned.would if image.ami_id == old["id"])
        done = retire(AWS, Retirement(mine, ()))
        failed = [image.error for image in done.would if image.error]
        if failed:
            raise KilnError("; ".join(failed), exit_status=1)
        return bool(mine)

    def run() -> None:
        for _ in range(3):
            step()

    def finish() -> None:
        while step():
            pass
        assert old["id"] not in {image.ami_id for image in images.own_images(AWS)}
        sweep(AWS, leftovers(AWS, [HOME, OTHER], timedelta(hours=24)))
        disks = world.client("ec2").describe_snapshots(OwnerIds=["self"])["Snapshots"]
        assert not [disk for disk in disks if old["id"] in disk["Description"]], "snapshots leaked"
        for ami_id in (held, kept):
            assert described(world.client, ami_id)["State"] == "available"
        old["id"] = one_that_its_channel_has_left()

    return Task(run, finish)


def sweeping(world: World) -> Task:
    """Leftovers of an old run in the other region, beside a run that is at work."""
    ec2 = world.client("ec2", OTHER)
    at_work = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{next(_NUMBERS):04x}"

    def long_ago() -> str:
        return f"20251101T000000Z-{next(_NUMBERS):04x}"

    def leave(run_id: str) -> None:
        tags = [{"Key": "kiln:run-id", "Value": run_id}]
        ec2.create_key_pair(
            KeyName=f"kiln-{run_id}", TagSpecifications=[{"ResourceType": "key-pair", "Tags": tags}]
        )
        ec2.create_volume(
            AvailabilityZone=f"{OTHER}a",
            Size=1,
            TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
        )

    def run() -> None:
        done = sweep(AWS, leftovers(AWS, [HOME, OTHER], timedelta(hours=24)))
        failed = [image.error for image in done if image.error]
        if failed:
            raise KilnError("; ".join(failed), exit_status=1)

    def finish() -> None:
        run()
        assert not leftovers(AWS, [HOME, OTHER], timedelta(hours=24))
        keys = [key["KeyName"] for key in ec2.describe_key_pairs()["KeyPairs"]]
        assert f"kiln-{at_work}" in keys
        leave(long_ago())

    run()
    leave(at_work)
    leave(long_ago())
    return Task(run, finish)


def a_night(world: World) -> Task:
    """A row whose AMI was built, but has not reached its channel."""
    digest = planning.plan_build(RECIPE, AWS, planning.Options()).input_digest
    ami_id = world.baked(**{INPUT_DIGEST: digest})
    line = a_line(Publish(regions=(OTHER,)))

    def publish(line: Any, chosen: str) -> Publication:
        return published(OTHER, ami_id=chosen)

    def build(recipes: Any) -> Any:
        raise AssertionError("it is built already")

    def run() -> None:
        for result in run_night(plan_night([line], AWS), build, publish):
            if result.action == "failed":
                raise KilnError(result.why, exit_status=1)

    def finish() -> None:
        run()
        assert resolved(world.client, "nightly") == ami_id
        assert [(row.action, row.ami_id) for row in plan_night([line], AWS)] == [("skip", ami_id)]
        for region in (HOME, OTHER):
            names = [name(LINE, "nightly") for name in NAMES]
            world.client("ssm", region).delete_parameters(Names=names)

    return Task(run, finish)


TASKS = {
    "publish": publishing,
    "promote": promoting,
    "rollback": rolling_back,
    "retire": retiring,
    "sweep": sweeping,
    "nightly": a_night,
}


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest, client: Client, bake: Bake) -> Task:
    return TASKS[request.param](World(client, bake))


def test_interrupted_task_is_continued(task: Task) -> None:
    """Killed after it has changed something, a region that is down, credentials that expire."""
    ends: list[tuple[faults.Fault, str]] = [
        (faults.after_writes(1, faults.killed()), ""),
        (faults.region_down(OTHER), OTHER),
        (faults.after_writes(1, faults.token_expired()), "Expired"),
    ]
    for fault, message in ends:
        with faulty(fault):
            if message:
                with pytest.raises(KilnError, match=message) as failed:
                    task.run()
                assert failed.value.exit_status == 1
            else:
                with pytest.raises(Killed):
                    task.run()
        task.finish()
    with faulty(faults.throttled()):
        task.run()
    task.finish()


@pytest.mark.skipif(not ALL, reason="KILN_PUBLISH_KILLS=all: kills each task at each of its calls")
@pytest.mark.parametrize("fault", [faults.killed(), faults.region_down(OTHER)])
def test_task_killed_at_any_call_is_finished_by_the_next(task: Task, fault: faults.Fault) -> None:
    for number in count():
        with faulty(faults.since(number, fault)) as sent, contextlib.suppress(Killed, KilnError):
            task.run()
        task.finish()
        if len(sent) <= number:
            break
    assert number > 10


def test_failed_copy_is_replaced(
    client: Client, bake: Bake, monkeypatch: pytest.MonkeyPatch
) -> None:
    bake(1)
    failed: list[str] = []
    real = BaseClient._make_api_call  # type: ignore[attr-defined]

    def call(self: Any, operation: str, parameters: dict[str, Any]) -> Any:
        answer = real(self, operation, parameters)
        if operation == "CopyImage" and not failed:
            failed.append(answer["ImageId"])
        for image in answer.get("Images", []):
            if image["ImageId"] in failed:
                image |= {"State": "failed", "StateReason": {"Message": "no such key"}}
        return answer

    monkeypatch.setattr(BaseClient, "_make_api_call", call)
    with pytest.raises(KilnError, match="is failed: no such key") as refused:
        published(OTHER)
    assert "publish again makes another one" in str(refused.value)
    assert channels.held(AWS, LINE, "nightly") is None
    published(OTHER)
    assert resolved(client, "nightly", OTHER) not in failed


def test_copy_with_an_outdated_key_is_replaced(client: Client, bake: Bake) -> None:
    bake(1)
    published(OTHER)
    before = resolved(client, "nightly", OTHER)
    key = client("kms", OTHER).create_key()["KeyMetadata"]["Arn"]
    with_key = Publish.model_validate({"kms_keys": {OTHER: key}})
    published(OTHER, settings=with_key)
    copy = resolved(client, "nightly", OTHER)
    assert copy != before
    image = images.require_image(AWS.in_region(OTHER), copy)
    assert set(images.snapshot_keys(AWS.in_region(OTHER), image).values()) == {key}
    published(OTHER, settings=with_key)
    assert resolved(client, "nightly", OTHER) == copy


@pytest.mark.parametrize("move", ["promote", "rollback"])
def test_channel_changed_meanwhile_stays(
    client: Client, bake: Bake, monkeypatch: pytest.MonkeyPatch, move: str
) -> None:
    world = World(client, bake)
    releases(world)
    channel = {"promote": "candidate", "rollback": "nightly"}[move]
    theirs = world.holds("candidate" if move == "rollback" else "nightly")[OTHER]
    move_one = moves.move_one

    def after_somebody_else(*move: Any) -> bool:
        name = channels.image_parameter(LINE, channel)
        client("ssm").put_parameter(Name=name, Value="ami-0ffff0000", Overwrite=True)
        return move_one(*move)

    monkeypatch.setattr(moves, "move_one", after_somebody_else)
    with pytest.raises(KilnError, match="by somebody else") as refused:
        promoted(channel) if move == "promote" else back(channel)
    assert refused.value.exit_status == 1
    assert resolved(client, channel) == "ami-0ffff0000"
    assert resolved(client, channel, OTHER) != theirs
