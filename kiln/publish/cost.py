"""The cost of runs and of their AMIs, by list prices: `kiln/facts/knowledge/ec2-prices.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.tags import SOURCE_IMAGE
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.facts import table
from kiln.matrix.publishing import Publish
from kiln.pipeline import kept_records
from kiln.pipeline.record import Record
from kiln.publish.own_images import OwnImage, own_images
from kiln.publish.regions import in_regions

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef

# The stages of a record during which an instance runs.
_BAKING = ("packer build",)
_VERIFYING = ("boot the AMI", "checks")
_GIB = 1 << 30


@dataclass(frozen=True)
class Cost:
    """US dollars by part: instances and transfer once, snapshots for the months asked about.

    `without_price` are the instance types whose price is not known: they are not in the sum.
    """

    instances: float = 0.0
    snapshots: float = 0.0
    transfer: float = 0.0
    without_price: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return self.instances + self.snapshots + self.transfer

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.instances + other.instances,
            self.snapshots + other.snapshots,
            self.transfer + other.transfer,
            tuple(dict.fromkeys([*self.without_price, *other.without_price])),
        )

    def as_json(self) -> dict[str, Any]:
        """Dollars by part, rounded to a hundredth of a cent, with the prices' dates."""
        parts = ("instances", "snapshots", "transfer", "total")
        return {
            "usd": {part: round(getattr(self, part), 4) for part in parts},
            "without_price": list(self.without_price),
            "prices": {
                part: {key: _prices()[part][key] for key in ("as_of", "source")}
                for part in ("instances", "snapshots", "transfer")
            },
        }


def run_cost(record: Record) -> Cost:
    """What the instances of a run cost: its seconds at the price on demand."""

    def seconds(stages: Sequence[str]) -> float:
        return sum(record.seconds.get(stage, 0) for stage in stages)

    return _instances(record.instance_type, seconds(_BAKING)) + _instances(
        record.verify_instance_type, seconds(_VERIFYING)
    )


def expected_cost(recipe: Recipe, settings: Publish, home: str) -> Cost:
    """What building and publishing a row will cost, its first month of snapshots included.

    As long as its last whole build here, otherwise as long as the facts expect; a snapshot is taken
    to be as large as its volume, which it is at most.
    """
    built = (
        record
        for record in kept_records.all_of(recipe.name)
        if record.kind == "build" and _is_whole(record)
    )
    last = next(built, None)
    expected = _prices()["expected_seconds"]
    if last is not None and last.instance_type:
        instances = run_cost(last)
    else:
        instances = _instances(recipe.instance_type, float(expected["bake"])) + _instances(
            recipe.verify_instance_type, float(expected["verify"])
        )
    copies = len(set(settings.regions) - {home})
    size = float(recipe.volume.size)
    return instances + Cost(
        snapshots=size * (1 + copies) * float(_prices()["snapshots"]["usd_per_gb_month"]),
        transfer=size * copies * _per_gb_from(home),
    )


def _is_whole(record: Record) -> bool:
    """Whether a build baked everything and came to its checks: what failed early was cheap."""
    return record.continued is None and {*_BAKING, *_VERIFYING} <= record.seconds.keys()


def images_cost(
    target: Target, regions: Sequence[str], months: float, *, only: Mapping[str, str]
) -> tuple[Cost, int]:
    """What the AMIs of AMI Kiln in these regions cost in some months, and how many they are.

    `only` are tags that they must have. Raises KilnError (exit status 1) if a region does not
    answer.
    """
    everywhere = list(dict.fromkeys([target.region, *regions]))

    def stored(region: str) -> list[tuple[bool, float]]:
        there = target.in_region(region)
        images = [image for image in own_images(there) if only.items() <= image.tags.items()]
        sizes = snapshot_sizes(there, images)
        return [
            (
                SOURCE_IMAGE in image.tags,
                sum(sizes.get(snapshot, 0) for snapshot in image.snapshots),
            )
            for image in images
        ]

    stored_images = [
        image for images in in_regions(everywhere, stored).values() for image in images
    ]
    cost = Cost(
        snapshots=sum(size for _, size in stored_images)
        * months
        * float(_prices()["snapshots"]["usd_per_gb_month"]),
        transfer=sum(size for copied, size in stored_images if copied)
        * _per_gb_from(target.region),
    )
    return cost, len(stored_images)


def cost_lines(cost: Cost, months: float) -> str:
    """For a terminal."""
    data = cost.as_json()
    usd, prices = data["usd"], data["prices"]
    lines = [
        f"instances  ${usd['instances']:,.4f}",
        f"snapshots  ${usd['snapshots']:,.4f} in {months:g} month{'s' if months != 1 else ''}",
        f"transfer   ${usd['transfer']:,.4f} for the copies",
        f"total      ${usd['total']:,.4f}",
    ]
    if cost.without_price:
        lines.append(f"without a known price, not in the sum: {', '.join(cost.without_price)}")
    lines.append(
        "List prices of us-east-1 (transfer: of the region that bakes), as of "
        + ", ".join(f"{part['as_of']} ({name})" for name, part in prices.items())
    )
    return "\n".join(lines)


def require_below(
    recipes: Sequence[Recipe], settings: Mapping[str, Publish], home: str, limit: float
) -> None:
    """Raises KilnError (exit status 2) if building and publishing the recipes is expected to cost
    more than `limit` dollars, or if nobody knows the price of one of their instance types."""
    whole = sum((expected_cost(recipe, settings[recipe.name], home) for recipe in recipes), Cost())
    if whole.without_price:
        raise KilnError(
            f"--max-cost {limit:g}: the price of {', '.join(whole.without_price)} is not known",
            hint="leave out --max-cost, or bake on another instance type",
        )
    if whole.total > limit:
        each = sorted(
            (
                (expected_cost(recipe, settings[recipe.name], home).total, recipe.name)
                for recipe in recipes
            ),
            reverse=True,
        )
        dearest = ", ".join(f"{name} ${usd:,.2f}" for usd, name in each[:3])
        number = len(recipes)
        rows = "1 row is" if number == 1 else f"{number} rows are"
        raise KilnError(
            f"{rows} expected to cost ${whole.total:,.2f} (with a month of "
            f"snapshots), more than --max-cost {limit:g}: nothing was started",
            hint=f"the dearest: {dearest}; raise --max-cost, or select fewer rows",
        )


def _prices() -> dict[str, Any]:
    return table("ec2-prices")


def _instances(instance_type: str | None, seconds: float) -> Cost:
    if instance_type is None or not seconds:
        return Cost()
    hourly = _prices()["instances"]["hourly"].get(instance_type)
    if hourly is None:
        return Cost(without_price=(instance_type,))
    return Cost(instances=float(hourly) * seconds / 3600)


def _per_gb_from(region: str) -> float:
    transfer = _prices()["transfer"]
    return float(transfer["usd_per_gb_from"].get(region, transfer["usd_per_gb_elsewhere"]))


# A filter takes at most 200 values:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html
_AT_ONCE = 200


def snapshot_sizes(target: Target, images: Sequence[OwnImage]) -> dict[str, float]:
    """GiB that each snapshot stores; where EC2 does not say it, the size of its volume."""
    wanted = [snapshot for image in images for snapshot in image.snapshots]
    sizes: dict[str, float] = {}
    with aws.explained(f"the snapshots could not be listed in {target.region}"):
        for first in range(0, len(wanted), _AT_ONCE):
            # By a filter: an id of an AMI that was retired meanwhile would be an error.
            chunk = wanted[first : first + _AT_ONCE]
            by_id: FilterTypeDef = {"Name": "snapshot-id", "Values": chunk}
            answer = aws.ec2(target).describe_snapshots(OwnerIds=["self"], Filters=[by_id])
            for snapshot in answer["Snapshots"]:
                stored = snapshot.get("FullSnapshotSizeInBytes")
                size = stored / _GIB if stored else float(snapshot["VolumeSize"])
                sizes[snapshot["SnapshotId"]] = size
    return sizes
