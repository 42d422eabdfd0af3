"""Lines of the matrix, what their channels hold in each region, and how they came to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kiln.base import vocabulary
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.recipe import Recipe
from kiln.base.tags import VERIFIED, says_verified
from kiln.base.vocabulary import as_time, read_time, utc_now
from kiln.cloud.images import Image, own_images
from kiln.cloud.target import Target
from kiln.matrix.flags import NOTHING, overridden
from kiln.matrix.load import default_publishing, load_publishing, load_recipes
from kiln.matrix.model import Publish
from kiln.publish import channels
from kiln.publish.channels import Held, Release
from kiln.publish.regions import in_regions, named_regions, require_regions


@dataclass(frozen=True)
class Line:
    """A row of the matrix, as consumers follow it."""

    recipe: Recipe
    settings: Publish

    @property
    def name(self) -> str:
        """The line: al2023/lts/base/x86_64."""
        return self.recipe.channel_line

    @property
    def tags(self) -> dict[str, str]:
        """The tags that the `aws` settings demand of what is made for the row."""
        return dict(overridden(self.recipe.row.account, NOTHING, self.recipe.arch).tags)


def load_lines() -> dict[str, Line]:
    """Return the lines of the matrix by their names."""
    settings = load_publishing()
    return {recipe.channel_line: Line(recipe, settings[recipe.name]) for recipe in load_recipes()}


def load_line(name: str) -> Line:
    """Return a line of the matrix."""
    lines = load_lines()
    if name not in lines:
        shown = vocabulary.shown(name)
        hint = did_you_mean(name, lines, listed_by="./invoke channels")
        raise KilnError(f"the matrix has no line {shown}", hint=hint)
    return lines[name]


def line_settings() -> dict[str, Publish]:
    """Return the `publish` settings of each line."""
    return {name: line.settings for name, line in load_lines().items()}


def retire_settings() -> dict[str, Publish]:
    """Return the settings of each line, of each row by its name, and of `defaults` as ""."""
    return {"": default_publishing(), **load_publishing(), **line_settings()}


def require_channel(channel: str, settings: Publish) -> str:
    """Return a channel that the settings declare."""
    if channel not in settings.channels:
        order = f"channels in order: {', '.join(settings.channels)}"
        raise KilnError(f"unknown channel {vocabulary.shown(channel)}", hint=order)
    return channel


def with_regions(settings: Publish, regions: str | None) -> Publish:
    """Return the settings with the regions of `--regions` instead of their own."""
    if regions is None:
        require_regions(settings.regions, "`publish.regions` of the row:")
        return settings
    return settings.model_copy(update={"regions": tuple(named_regions(regions))})


def regions_to_show(regions: str | None) -> list[str]:
    """Return the regions of `--regions`; without it every region that a row is published to."""
    if regions is not None:
        return named_regions(regions)
    return published_regions(load_publishing())


def published_regions(publishing: Mapping[str, Publish]) -> list[str]:
    """Return every region that settings publish to."""
    names = (region for settings in publishing.values() for region in settings.regions)
    return require_regions(names, "`publish.regions`:")


@dataclass(frozen=True)
class ChannelRow:
    """Row of a table: the image of a line's channel in a region.

    `verified` is what the AMI's own tag says there; `age_days` is since the AMI was built. `drift`
    says in words how the region differs from the one it was published from; empty if it does not.
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


def channel_rows(
    target: Target,
    regions: Sequence[str],
    settings: Mapping[str, Publish],
    *,
    only: bool = False,
    line: str | None = None,
) -> list[ChannelRow]:
    """Return every channel of every line, or of one, in the target's region and in `regions`.

    Unless `only`, also in the regions of the releases found there. Channels come in the order that
    `settings`, by line, declare; undeclared ones last.
    """
    home = channels.all_held(target, line)
    released = [region for held in home if held.release for region in held.release.images]
    everywhere = list(dict.fromkeys([target.region, *regions, *([] if only else released)]))
    at_home = {(held.line, held.channel): held.release for held in home}

    def rows(there: Target) -> list[ChannelRow]:
        images = {
            image.ami_id: image
            for image in own_images(there)
            if image.line and image.state == "available"
        }
        found = []
        for held in home if there.region == target.region else channels.all_held(there, line):
            image, release = images.get(held.image_id), held.release
            age = utc_now() - read_time(release.built) if release else None
            found.append(
                ChannelRow(
                    line=held.line,
                    channel=held.channel,
                    region=held.region,
                    ami_id=held.image_id,
                    recipe=release.recipe if release else None,
                    driver=release.installed.driver if release else None,
                    cuda=release.installed.cuda if release else None,
                    verified=image is not None and says_verified(image.tags.get(VERIFIED)),
                    age_days=round(age.total_seconds() / 86400, 1) if age is not None else None,
                    since=as_time(held.since),
                    drift=_drift(held, at_home.get((held.line, held.channel)), image, target),
                )
            )
        return found

    def place(row: ChannelRow) -> tuple[str, int, str, int]:
        declared = settings.get(row.line, Publish()).channels
        stage = declared.index(row.channel) if row.channel in declared else len(declared)
        return row.line, stage, row.channel, everywhere.index(row.region)

    return sorted(
        (row for each in in_regions(target, everywhere, rows).values() for row in each), key=place
    )


def _drift(held: Held, home: Release | None, image: Image | None, target: Target) -> str:
    if image is None:
        return "the image is not available here"
    if held.release is None:
        return "no release describes it"
    if held.moving:
        return "a move was interrupted"
    if home and home.ami_name != held.release.ami_name:
        return f"{target.region} holds {home.ami_name}"
    return ""


def history_rows(target: Target, line: str, names: Sequence[str]) -> list[dict[str, str | None]]:
    """Return the moves of a line's channels in the target's region, newest first: when, by whom,
    which AMI, why."""
    rows: list[dict[str, str | None]] = [
        {
            "line": line,
            "channel": channel,
            **release.moved.model_dump(),
            "ami_id": release.images.get(target.region),
            "ami_name": release.ami_name,
            "recipe": release.recipe,
        }
        for channel in names
        for release in channels.past(target, line, channel)
    ]
    return sorted(rows, key=lambda row: str(row["at"]), reverse=True)
