"""`channels` and `history`: what the channels hold in each region, and how they came to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kiln.base.tags import VERIFIED, says_verified
from kiln.base.times import as_time, read_time, utc_now
from kiln.cloud.images import find_image, own_images
from kiln.cloud.target import Target
from kiln.matrix.publishing import Publish
from kiln.publish import channels, sharing
from kiln.publish.channels import Held
from kiln.publish.regions import in_regions


@dataclass(frozen=True)
class ChannelRow:
    """What a channel of a line holds in a region.

    `verified` is what the AMI's own tag says there; `age_days` is since the AMI was built. `drift`
    says in words how the region differs from the one it was published from; empty if it does not.
    `opened` says who may use the AMI though `share` does not declare it, as far as it was asked.
    """

    line: str
    channel: str
    region: str
    ami_id: str
    recipe: str | None
    driver: str | None
    cuda: str | None
    verified: bool
    age_days: float | None
    since: str
    drift: str
    opened: tuple[str, ...] = ()


def with_opened(
    rows: Sequence[ChannelRow], target: Target, settings: Mapping[str, Publish]
) -> list[ChannelRow]:
    """The rows with what is open beyond the declaration of their line.

    Raises KilnError (exit status 1) if EC2 does not answer.
    """

    def permissions(region: str) -> dict[str, sharing.Open]:
        there = target.in_region(region)
        ids = {row.ami_id for row in rows if row.region == region}
        images = (find_image(there, ami_id) for ami_id in sorted(ids))
        return {
            image.ami_id: sharing.permissions(there, image.ami_id, image.snapshots)
            for image in images
            if image
        }

    has = in_regions(list(dict.fromkeys(row.region for row in rows)), permissions)
    nobody = Publish()
    return [
        replace(
            row,
            opened=tuple(
                sharing.undeclared(
                    has[row.region].get(row.ami_id, {}), settings.get(row.line, nobody).share
                )
            ),
        )
        for row in rows
    ]


def channel_rows(
    target: Target, regions: Sequence[str], settings: Mapping[str, Publish], *, only: bool = False
) -> list[ChannelRow]:
    """Every channel of every line in the target's region, in these, and unless `only` these in
    those to which the releases there were published; channels in the order that `settings`, by
    line, declare. One that is declared no more comes last.

    Raises KilnError (exit status 1) if a region does not answer.
    """
    here = channels.all_held(target)
    named = [region for channel in here if channel.release for region in channel.release.images]
    everywhere = list(dict.fromkeys([target.region, *regions, *([] if only else named)]))
    held = {
        target.region: here,
        **in_regions(everywhere[1:], lambda region: channels.all_held(target.in_region(region))),
    }
    verdicts = in_regions(everywhere, lambda region: _verdicts(target.in_region(region)))
    home = {(holding.line, holding.channel): holding for holding in held[target.region]}
    rows = [
        _row(holding, home.get((holding.line, holding.channel)), verdicts[region])
        for region in everywhere
        for holding in held[region]
    ]

    def place(row: ChannelRow) -> tuple[str, int, str, int]:
        declared = settings.get(row.line, Publish()).channels
        stage = declared.index(row.channel) if row.channel in declared else len(declared)
        return row.line, stage, row.channel, everywhere.index(row.region)

    return sorted(rows, key=place)


def _verdicts(target: Target) -> dict[str, str]:
    """The verdict in the tags of each published image of the target's region, by its id."""
    return {
        image.ami_id: image.tags.get(VERIFIED, "")
        for image in own_images(target)
        if image.line and image.state == "available"
    }


def _row(holding: Held, home: Held | None, verdicts: Mapping[str, str]) -> ChannelRow:
    release = holding.release
    has = release.installed if release else None
    return ChannelRow(
        line=holding.line,
        channel=holding.channel,
        region=holding.region,
        ami_id=holding.image_id,
        recipe=release.recipe if release else None,
        driver=has.driver if has else None,
        cuda=has.cuda if has else None,
        verified=says_verified(verdicts.get(holding.image_id)),
        age_days=_age(release.built) if release else None,
        since=as_time(holding.since),
        drift=_drift(holding, home, verdicts),
    )


def _age(built: str) -> float | None:
    """Days since a time in ISO 8601; None if the text is not one."""
    try:
        age = utc_now() - read_time(built)
    except ValueError:
        return None
    return round(age.total_seconds() / 86400, 1)


def _drift(holding: Held, home: Held | None, verdicts: Mapping[str, str]) -> str:
    if holding.image_id not in verdicts:
        return "the image is not available here"
    if holding.release is None:
        return "no release describes it"
    if holding.moving:
        return "a move was interrupted"
    if home and home.release and home.release.ami_name != holding.release.ami_name:
        return f"{home.region} holds {home.release.ami_name}"
    return ""


@dataclass(frozen=True)
class HistoryRow:
    """A move of a channel: when, by whom, which AMI of the target's region, why."""

    line: str
    channel: str
    at: str
    by: str
    action: str
    ami_id: str | None
    ami_name: str
    recipe: str
    why: str


def history_rows(target: Target, line: str, names: Sequence[str]) -> list[HistoryRow]:
    """The moves of a line's channels in the target's region, newest first.

    Raises KilnError (exit status 1) if SSM refuses.
    """
    rows = [
        HistoryRow(
            line=line,
            channel=channel,
            at=release.moved.at,
            by=release.moved.by,
            action=release.moved.action,
            ami_id=release.images.get(target.region),
            ami_name=release.ami_name,
            recipe=release.recipe,
            why=release.moved.why,
        )
        for channel in names
        for release in channels.past(target, line, channel)
    ]
    return sorted(rows, key=lambda row: row.at, reverse=True)
