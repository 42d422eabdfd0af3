"""A hundred lines in seventeen regions: seconds and API calls of what looks at all of them.

Each line's first channel holds a verified AMI; what it holds is written as a publish writes it, for
publishing 1,700 copies would measure something else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from kiln.base.recipe import Recipe
from kiln.base.tags import LINE, RUN_ID, VERIFIED
from kiln.base.verdict_tag import TaggedVerdict
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.matrix.publishing import Publish
from kiln.pipeline import plan as planning
from kiln.publish import channels
from kiln.publish.night_plan import plan_night
from kiln.publish.overview import channel_rows
from kiln.publish.release import Moved, Release
from kiln.publish.retire import plan_retirement

LINES = 100
VERDICT = str(TaggedVerdict(passed=True, at="2026-11-01T00:10:00Z", commit="c0ffee0"))
Timed = Callable[[Callable[[], Any]], tuple[float, Counter[str]]]
Measured = tuple[str, float, str, float | None, str]


def many(rows: Sequence[Recipe], lines: int) -> list[Recipe]:
    """So many recipes, each of a line of its own."""
    recipes = []
    for number in range(lines):
        row = rows[number % len(rows)]
        line = row.line.replace(f"-{row.flavor}-{row.arch}", f"{number}-{row.flavor}-{row.arch}")
        recipes.append(replace(row, name=f"{row.name}-{number}", line=line))
    return recipes


def wide_figures(
    rows: Sequence[Recipe],
    regions: Sequence[str],
    target: Target,
    make: Callable[[Recipe, str], str],
    timed: Timed,
) -> Iterator[Measured]:
    """The figures; `make` makes a recipe's AMI with that input digest, and returns its id."""
    lines = many(rows, LINES)
    settings = {row.name: Publish(regions=tuple(regions)) for row in lines}
    copies = _copies(make(lines[0], "0" * 64), regions, target)
    half: Counter[str] = Counter()
    for part in (lines[: LINES // 2], lines[LINES // 2 :]):
        for row in part:
            digest = planning.plan_build(row, target, planning.Options()).input_digest
            _hold(row, {**copies, target.region: make(row, digest)}, target)
        if not half:
            _, half = timed(lambda: plan_night(lines[: LINES // 2], settings, target))
    what = f"{LINES} lines, {len(regions)} regions"
    seconds, calls = timed(lambda: plan_night(lines, settings, target))
    yield f"a night's plan of {what}, nothing to do", seconds, "s", 5.0, _shown(calls)
    per_line = (sum(calls.values()) - sum(half.values())) / (LINES - LINES // 2)
    yield "API calls of the plan per line more", per_line, "calls", None, "none per region"
    seconds, calls = timed(lambda: channel_rows(target, regions, {}))
    yield f"channels of {what}", seconds, "s", 5.0, _shown(calls)
    # Two parameters a line, ten to a page; the first part of the bench has left lines too.
    at_home, elsewhere = (-(-2 * number // 10) for number in (LINES + len(rows), LINES + 1))
    need = at_home + elsewhere * (len(regions) - 1) + len(regions)
    note = f"{at_home} pages here and {elsewhere} in each other region, and the images of each"
    yield "API calls of channels / these", sum(calls.values()) / need, "x", 1.0, note
    by_line = {row.channel_line: settings[row.name] for row in lines}
    seconds, calls = timed(lambda: plan_retirement(target, regions, by_line))
    yield f"retire's plan of {what}", seconds, "s", 5.0, _shown(calls)


def _copies(ami_id: str, regions: Sequence[str], target: Target) -> dict[str, str]:
    """An image in each other region, that of all lines there."""
    copied = {}
    tags = {LINE: "al2/classic/base/x86_64", RUN_ID: "20261101T000000Z-aaaa", VERIFIED: VERDICT}
    for region in regions:
        if region == target.region:
            continue
        ec2: Any = aws.ec2(target.in_region(region))
        copy = ec2.copy_image(Name="wide", SourceImageId=ami_id, SourceRegion=target.region)
        copied[region] = str(copy["ImageId"])
        ec2.get_waiter("image_available").wait(
            ImageIds=[copied[region]], WaiterConfig={"Delay": 1, "MaxAttempts": 60}
        )
        ec2.create_tags(
            Resources=[copied[region]],
            Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
        )
    return copied


def _hold(row: Recipe, images: Mapping[str, str], target: Target) -> None:
    """Write what the first channel of a line holds in each region."""
    channel = Publish().channels[0]
    release = Release(
        line=row.channel_line,
        channel=channel,
        recipe=row.name,
        ami_name=row.name,
        images=dict(images),
        verdict=VERDICT,
        run_id="20261101T000000Z-aaaa",
        recipe_digest="d" * 64,
        git_commit="c0ffee0",
        built="2026-11-01T00:00:00Z",
        moved=Moved("2026-11-01T00:20:00Z", "arn:aws:iam::123456789012:user/bench", "publish"),
    )

    def write(region: str) -> None:
        ssm = aws.ssm(target.in_region(region))
        name = channels.release_parameter(row.channel_line, channel)
        ssm.put_parameter(Name=name, Value=release.as_json(), Type="String")
        name, image = channels.image_parameter(row.channel_line, channel), images[region]
        ssm.put_parameter(Name=name, Value=image, Type="String", DataType="aws:ec2:image")

    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(write, images))


def _shown(calls: Counter[str]) -> str:
    most = ", ".join(f"{number} {name}" for name, number in calls.most_common(4))
    return f"{sum(calls.values())} API calls: {most}"
