"""Whatever ends a task midway, consumers keep an image that launches, and the next run finishes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from kiln.base.errors import KilnError
from kiln.base.tags import LINE as LINE_TAG
from kiln.base.vocabulary import utc_now
from kiln.cloud import images
from kiln.matrix.model import Publish
from kiln.publish import channels
from kiln.publish import promote as moves
from kiln.publish.retire import Retirement, plan_retirement, retire
from kiln.publish.sweep import leftovers, sweep
from tests.unit.publish import faults
from tests.unit.publish.channel import (
    AWS,
    HOME,
    LINE,
    OTHER,
    Bake,
    Client,
    back,
    described,
    promoted,
    published,
    resolved,
)
from tests.unit.publish.faults import Killed, faulty

pytestmark = pytest.mark.slow


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
    held = world.baked()
    kept = world.baked(**{LINE_TAG: LINE, "kiln:keep": "yes"})
    settings = {LINE: Publish(keep={"nightly": 1}, deprecate_after=1, deregister_after=1)}
    days = count(2, 2)
    old: list[str] = []

    def one_that_its_channel_has_left() -> None:
        old.append(world.baked())
        published(ami_id=old[-1])
        published(ami_id=held)

    def step() -> bool:
        """Whether there was a step to do, two days after the one before."""
        then = utc_now() + timedelta(days=next(days))
        with pytest.MonkeyPatch.context() as later:
            later.setattr("kiln.publish.retire.utc_now", lambda: then)
            planned = plan_retirement(AWS, [OTHER], settings)
            assert not {held, kept} & {image.ami_id for image in planned.would}
            mine = tuple(image for image in planned.would if image.ami_id == old[-1])
            done = retire(AWS, Retirement(mine, ()))
        for image in done.would:
            if image.error:
                raise KilnError(image.error, exit_status=1)
        return bool(mine)

    def run() -> None:
        for _ in range(3):
            step()

    def finish() -> None:
        while step():
            pass
        assert old[-1] not in {image.ami_id for image in images.own_images(AWS)}
        sweep(AWS, leftovers(AWS, [HOME, OTHER], timedelta(hours=24)))
        disks = world.client("ec2").describe_snapshots(OwnerIds=["self"])["Snapshots"]
        assert not [disk for disk in disks if old[-1] in disk["Description"]], "snapshots leaked"
        for ami_id in (held, kept):
            assert described(world.client, ami_id)["State"] == "available"
        one_that_its_channel_has_left()

    one_that_its_channel_has_left()
    return Task(run, finish)


TASKS = {
    "publish": publishing,
    "promote": promoting,
    "rollback": rolling_back,
    "retire": retiring,
}


@pytest.fixture(
    # The one that deletes; the others with --all.
    params=[
        name if name == "retire" else pytest.param(name, marks=pytest.mark.all) for name in TASKS
    ]
)
def task(request: pytest.FixtureRequest, client: Client, bake: Bake) -> Task:
    return TASKS[request.param](World(client, bake))


def test_interrupted_task_is_continued(task: Task) -> None:
    """Killed after it has changed something, a region that is down, credentials that expire."""
    ends: list[tuple[faults.Fault, str]] = [
        (faults.after_writes(1, faults.killed), ""),
        (faults.region_down(OTHER), OTHER),
        (faults.after_writes(1, faults.token_expired), "Expired"),
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


def test_failed_copy_is_replaced(client: Client, bake: Bake) -> None:
    bake(1)
    with_key = Publish.model_validate({"kms_keys": {OTHER: "alias/late"}})
    with pytest.raises(KilnError, match=r"is failed: The KMS key .* does not exist in eu-west-1"):
        published(OTHER, settings=with_key)
    assert channels.held(AWS, LINE, "nightly") is None
    kms = client("kms", OTHER)
    kms.create_alias(AliasName="alias/late", TargetKeyId=kms.create_key()["KeyMetadata"]["KeyId"])
    published(OTHER, settings=with_key)
    assert described(client, resolved(client, "nightly", OTHER), OTHER)["State"] == "available"


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
