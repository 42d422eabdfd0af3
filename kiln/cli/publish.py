"""Tasks that bring a verified AMI to its users: publish, promote, rollback, channels, history."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from invoke import Context

from kiln.cli.flags import JSON, PLACE, RECORDS, TARGET, account_help, replaces_settings
from kiln.cli.front import note, show, task

if TYPE_CHECKING:
    from kiln.publish.promote import Promotion

LINE = {"line": "what consumers follow: --line al2023/lts/base/x86_64 (./invoke channels)"}
WHY = {"why": "a sentence for the history: --why 'CVE-2026-1234'"}


@task(
    help={
        "name": "the AMI's name in the matrix, as ./invoke list shows it",
        "channel": "the first channel of the row's `publish`, as without it: --channel nightly",
        "ami": "another AMI than the row's newest verified one: --ami ami-0123456789abcdef0",
        "regions": "instead of the row's: --regions eu-west-1,us-west-2",
        "smoke": "boot the image of each region and check it before its channel moves",
        **WHY,
        **TARGET,
        **account_help(RECORDS),
        **JSON,
    }
)
@replaces_settings(RECORDS)
def publish(
    c: Context,
    name: str,
    aws_flags: dict[str, str],
    channel: str | None = None,
    ami: str | None = None,
    regions: str | None = None,
    smoke: bool = False,
    why: str = "",
    target: str = "auto",
    region: str | None = None,
    no_install: bool = False,
    json: bool = False,
) -> int:
    """Copy a verified AMI to its regions, share it, and let the first channel hold it."""
    from kiln.cli import fetched_records, targets
    from kiln.matrix import flags, load, select
    from kiln.pipeline import verify
    from kiln.publish import lines
    from kiln.publish.publish import publish_row

    (recipe,) = select.select(load.load_recipes(), name=name)
    settings = lines.with_regions(load.load_publishing()[recipe.name], regions)
    if ami is not None:
        flags.ami(ami)
    place = targets.choose(target, region)
    done = publish_row(
        lines.Line(recipe, settings),
        place,
        ami_id=ami,
        channel=channel,
        why=why,
        say=note,
        smoke=verify.smoke_test(install=not no_install) if smoke else None,
        shelf=fetched_records.shelf_for(aws_flags, place, recipe),
    )
    show(
        [asdict(step) for step in done.steps],
        as_json=json,
        text=lambda steps: (
            f"{done.release.channel} of {done.release.line} holds {done.release.ami_name}"
        ),
    )
    return 0


@task(
    help={
        **LINE,
        "to": "the channel that gets what the one before it holds: --to stable",
        "accept": "open the gates that a person may open (differences, the fleet's health)",
        "dry-run": "show the gates and move nothing",
        **WHY,
        **PLACE,
        **JSON,
    }
)
def promote(
    c: Context,
    line: str,
    to: str,
    accept: bool = False,
    dry_run: bool = False,
    why: str = "",
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """Let a channel hold what the channel before it holds, if every gate is open."""
    from kiln.cli import targets
    from kiln.publish.lines import load_line
    from kiln.publish.promote import promote_line

    promotion = promote_line(
        load_line(line),
        to,
        targets.choose(target, region),
        accept=accept,
        dry_run=dry_run,
        why=why,
        say=note,
    )
    show(_as_json(promotion), as_json=json, text=lambda data: _gates_text(promotion, dry_run))
    return 0 if promotion.allowed else 1


@task(
    help={
        **LINE,
        "channel": "the channel that goes back: --channel stable",
        "to": "an AMI that it held, instead of the one before: --to ami-0123456789abcdef0",
        **WHY,
        **PLACE,
        **JSON,
    }
)
def rollback(
    c: Context,
    line: str,
    channel: str,
    to: str | None = None,
    why: str = "",
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """Let a channel hold the image before its present one again, in all regions."""
    from kiln.base import vocabulary
    from kiln.cli import targets
    from kiln.publish.lines import load_line
    from kiln.publish.promote import roll_back

    row = load_line(line)
    if to is not None:
        vocabulary.AMI_ID.required(to, "--to")
    back = roll_back(
        row,
        channel,
        targets.choose(target, region),
        to=to,
        why=why,
        say=note,
    )
    show(
        [asdict(step) for step in back.steps],
        as_json=json,
        text=lambda steps: f"{channel} of {line} holds {back.release.ami_name} again",
    )
    return 1 if back.kept else 0


@task(
    name="channels",
    help={
        "line": "only this line: --line al2023/lts/base/x86_64",
        "regions": "instead of all that are published to: --regions eu-west-1,us-west-2",
        **PLACE,
        **JSON,
    },
)
def channels_(
    c: Context,
    line: str | None = None,
    regions: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> None:
    """Which AMI each channel of each line holds, in each region."""
    from kiln.cli import targets
    from kiln.cli.channel_tables import channels_table
    from kiln.publish import lines
    from kiln.publish.regions import answering

    wanted = lines.load_line(line).name if line else None
    shown, settings = lines.regions_to_show(regions), lines.line_settings()
    place = answering(targets.choose(target, region))
    only = regions is not None
    rows = lines.channel_rows(place, shown, settings, only=only, line=wanted, with_opened=True)
    show([asdict(row) for row in rows], as_json=json, text=lambda data: channels_table(rows))


@task(
    help={
        **LINE,
        "channel": "only this channel: --channel stable",
        **PLACE,
        **JSON,
    },
)
def history(
    c: Context,
    line: str,
    channel: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> None:
    """Who moved the channels of a line when, to which AMI, and why."""
    from kiln.cli import targets
    from kiln.cli.channel_tables import history_table
    from kiln.publish.lines import history_rows, load_line, require_channel
    from kiln.publish.regions import answering

    settings = load_line(line).settings
    names = [require_channel(channel, settings)] if channel else list(settings.channels)
    rows = history_rows(answering(targets.choose(target, region)), line, names)
    show(rows, as_json=json, text=lambda data: history_table(rows))


def _as_json(promotion: Promotion) -> dict[str, Any]:
    return {
        "line": promotion.release.line,
        "channel": promotion.release.channel,
        "allowed": promotion.allowed,
        "gates": [asdict(gate) for gate in promotion.gates],
        "steps": [asdict(step) for step in promotion.steps],
    }


def _gates_text(promotion: Promotion, dry_run: bool) -> str:
    release = promotion.release
    lines = [
        f"{'open' if gate.open else 'closed':6}  {gate.name:10}  {gate.evidence}"
        for gate in promotion.gates
    ]
    closed = [gate for gate in promotion.gates if not gate.open]
    if closed:
        acceptable = all(gate.acceptable for gate in closed)
        lines.append(
            f"{release.channel} of {release.line} stays as it is"
            + ("; --accept opens these gates" if acceptable else "")
        )
    elif dry_run:
        lines.append(f"{release.channel} of {release.line} would hold {release.ami_name}")
    else:
        lines.append(f"{release.channel} of {release.line} holds {release.ami_name}")
    return "\n".join(lines)
