"""What the flags of the publishing tasks mean: a line, regions, a target that answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kiln.base import vocabulary
from kiln.base.errors import KilnError, did_you_mean, nearest, operation_failed
from kiln.base.recipe import Recipe
from kiln.cloud import aws
from kiln.cloud.target import Target
from kiln.matrix.load import default_publishing, load_publishing, load_recipes
from kiln.matrix.publishing import Publish
from kiln.publish import channels
from kiln.telemetry.settings import Telemetry


@dataclass(frozen=True)
class LineRow:
    """The row of the matrix that a line belongs to today."""

    line: str
    recipe: Recipe
    settings: Publish

    @property
    def log_group(self) -> str | None:
        """The log group of the image's Xid events; None if it ships none."""
        if "cloudwatch-agent" not in self.recipe.components:
            return None
        return Telemetry(**self.recipe.telemetry).log_group


def line_rows() -> dict[str, LineRow]:
    """The row of each line of the matrix."""
    settings = load_publishing()
    return {
        recipe.channel_line: LineRow(recipe.channel_line, recipe, settings[recipe.name])
        for recipe in load_recipes()
    }


def row_of(line: str) -> LineRow:
    """The row of a line. Raises KilnError (exit status 2) if the matrix has no such line."""
    by_line = line_rows()
    if line.startswith("/"):
        raise KilnError(
            f"{vocabulary.shown(line)} is the name of a parameter, not a line",
            hint="a line is what stands between /ami-kiln/ and the channel: al2023/lts/base/x86_64",
        )
    if line not in by_line:
        shown = vocabulary.shown(line)
        raise KilnError(f"the matrix has no line {shown}", hint=did_you_mean(line, by_line))
    return by_line[line]


def settings_by_line() -> dict[str, Publish]:
    """The `publish` settings of each line of the matrix."""
    return {line: row.settings for line, row in line_rows().items()}


def settings_to_retire() -> dict[str, Publish]:
    """The same, and those of each row by its name, and of `defaults` as ""."""
    return {"": default_publishing(), **load_publishing(), **settings_by_line()}


def channel_of(row: LineRow, channel: str) -> str:
    """A channel of the line. Raises KilnError (exit status 2) for an unknown one."""
    if channel not in row.settings.channels:
        hint = did_you_mean(channel, row.settings.channels)
        raise KilnError(f"there is no channel {vocabulary.shown(channel)}: {hint}")
    return channel


def with_regions(settings: Publish, regions: str | None) -> Publish:
    """The settings with the regions of `--regions a,b` instead of their own, if it was given.

    Raises KilnError (exit status 2) for an unknown region, and for `--regions` without a name.
    """
    if regions is None:
        for region in settings.regions:
            _require_region(region, "`publish.regions` of the row:")
        return settings
    return settings.model_copy(update={"regions": tuple(_regions(regions))})


def regions_to_show(regions: str | None) -> list[str]:
    """The regions of `--regions`, otherwise every region that a row is published to.

    Raises KilnError (exit status 2) for an unknown region, and for `--regions` without a name.
    """
    if regions is not None:
        return _regions(regions)
    return _published_to(load_publishing().values())


def _published_to(publishing: Iterable[Publish]) -> list[str]:
    every = (region for settings in publishing for region in settings.regions)
    return [_require_region(region, "`publish.regions`:") for region in dict.fromkeys(every)]


def require_regions(recipes: Sequence[Recipe], publishing: Iterable[Publish]) -> None:
    """Raises KilnError (exit status 2) for a region of the matrix that AWS does not have."""
    for region in {recipe.row.account.region for recipe in recipes} - {None}:
        _require_region(str(region), "`aws.region`:")
    _published_to(publishing)


def with_published(regions: Sequence[str], target: Target) -> list[str]:
    """These regions, and those to which the releases were published that channels of the target's
    region hold. Raises KilnError (exit status 1) if SSM refuses."""
    releases = (holding.release for holding in channels.all_held(target))
    named = (region for release in releases if release for region in release.images)
    return list(dict.fromkeys([*regions, *named]))


def _regions(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise KilnError("--regions names no region", hint="--regions eu-west-1,us-west-2")
    return [_require_region(name, "--regions") for name in dict.fromkeys(names)]


def _require_region(name: str, called: str) -> str:
    """A region that exists: EC2's name for another one would only be a host that is not found."""
    vocabulary.REGION.required(name, called)
    regions = aws.regions()
    if name not in regions:
        best = nearest(name, regions)
        raise KilnError(
            f"{called} {name}: AWS has no region of that name, as far as boto3 here knows",
            hint=f"did you mean {best}?" if best else "",
        )
    return name


def answering(target: Target) -> Target:
    """The target with its place known. Raises KilnError (exit status 1) if it does not answer."""
    gone = target.hooks.gone()
    if gone:
        raise operation_failed(gone, hint="./invoke lab.up starts it")
    return target.identified()
