"""Tasks of releases: publish, promote, rollback, channels, history, retire, sweep, provenance."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError
from kiln.cli.options import Place, RecordSettings
from kiln.cli.output import log, output, table
from kiln.cli.task import task

if TYPE_CHECKING:
    from rich.table import Table

    from kiln.publish.promote import Promotion
    from kiln.publish.retire import Retirement

_NOTHING = "the channels hold nothing yet: ./invoke publish fills the first one"


@task("Release")
def publish(
    name: str,
    ami: str | None = None,
    regions: str | None = None,
    smoke: bool = False,
    why: str = "",
    no_install: bool = False,
    *,
    place: Place,
    records: RecordSettings,
) -> None:
    """Copy and share a verified AMI into the first channel.

    ./invoke publish al2023-580.178.04-cuda13.0-base-x86_64 --smoke

    name: the AMI's name in the matrix, as ./invoke list shows it
    ami: another AMI than the row's newest verified one: --ami ami-0123456789abcdef0
    regions: instead of the row's: --regions eu-west-1,us-west-2
    smoke: boot the image of each region and check it before its channel moves
    """
    from kiln.base import vocabulary
    from kiln.matrix import flags, load
    from kiln.pipeline import verify
    from kiln.publish import lines
    from kiln.publish.publish import publish_row

    (recipe,) = flags.select(load.load_recipes(), name=name)
    settings = lines.with_regions(load.load_publishing()[recipe.name], regions)
    if ami is not None:
        vocabulary.AMI_ID.required(ami, "--ami")
    target = place.choose()
    done = publish_row(
        lines.Line(recipe, settings),
        target,
        ami_id=ami,
        why=why,
        say=log,
        smoke=verify.smoke_test(install=not no_install) if smoke else None,
        shelf=records.shelf(target, recipe),
    )
    release = done.release
    text = f"{release.channel} of {release.line} holds {release.ami_name}"
    output([asdict(step) for step in done.steps], text)


@task("Release")
def promote(
    line: str,
    to: str,
    accept: bool = False,
    dry_run: bool = False,
    why: str = "",
    *,
    place: Place,
) -> int:
    """Promote a release to the next channel.

    ./invoke promote al2023/lts/base/x86_64 stable --dry-run

    to: the channel that gets what the one before it holds: --to stable
    accept: open the gates that a person may open (differences, the fleet's health)
    dry_run: show the gates and move nothing
    """
    from kiln.publish.lines import load_line
    from kiln.publish.promote import promote_line

    promotion = promote_line(
        load_line(line),
        to,
        place.choose(),
        accept=accept,
        dry_run=dry_run,
        why=why,
        say=log,
    )
    output(_promotion_data(promotion), *_gates(promotion, dry_run))
    return 0 if promotion.allowed else 1


def _promotion_data(promotion: Promotion) -> dict[str, Any]:
    return {
        "line": promotion.release.line,
        "channel": promotion.release.channel,
        "allowed": promotion.allowed,
        "gates": [asdict(gate) for gate in promotion.gates],
        "steps": [asdict(step) for step in promotion.steps],
    }


def _gates(promotion: Promotion, dry_run: bool) -> tuple[Table, str]:
    release, gates = promotion.release, promotion.gates
    rows = [("open" if gate.open else "closed", gate.name, gate.evidence) for gate in gates]
    channel = f"{release.channel} of {release.line}"
    if closed := [gate for gate in gates if not gate.open]:
        accept = "; --accept opens these gates" if all(gate.acceptable for gate in closed) else ""
        return table((), rows), f"{channel} stays as it is{accept}"
    holds = "would hold" if dry_run else "holds"
    return table((), rows), f"{channel} {holds} {release.ami_name}"


@task("Release")
def rollback(line: str, channel: str, to: str | None = None, why: str = "", *, place: Place) -> int:
    """Restore a channel's previous image in all regions.

    ./invoke rollback al2023/lts/base/x86_64 stable --why 'CVE-2026-1234'

    channel: the channel that goes back: --channel stable
    to: an AMI that it held, instead of the one before: --to ami-0123456789abcdef0
    """
    from kiln.base import vocabulary
    from kiln.publish.lines import load_line
    from kiln.publish.promote import roll_back

    row = load_line(line)
    if to is not None:
        vocabulary.AMI_ID.required(to, "--to")
    back = roll_back(row, channel, place.choose(), to=to, why=why, say=log)
    text = f"{channel} of {line} holds {back.release.ami_name} again"
    output([asdict(step) for step in back.steps], text)
    return 1 if back.kept else 0


@task("Release")
def channels(line: str | None = None, regions: str | None = None, *, place: Place) -> None:
    """Show the AMI of each channel and region.

    line: only this line: --line al2023/lts/base/x86_64
    regions: instead of all that are published to: --regions eu-west-1,us-west-2
    """
    from kiln.publish import lines

    wanted = lines.load_line(line).name if line else None
    shown, settings = lines.regions_to_show(regions), lines.line_settings()
    target, only = place.choose_running(), regions is not None
    rows = lines.channel_rows(target, shown, settings, only=only, line=wanted, with_opened=True)
    headings = ("LINE", "CHANNEL", "REGION", "AMI", "DRIVER", "CUDA", "AGE", "VERDICT", "")
    cells = [
        (
            *(row.line, row.channel, row.region, row.ami_id, row.driver or "-", row.cuda or "-"),
            "-" if row.age_days is None else f"{row.age_days:.0f} d",
            "verified" if row.verified else "NOT VERIFIED",
            "; ".join([*([row.drift] if row.drift else []), *row.opened]),
        )
        for row in rows
    ]
    output([asdict(row) for row in rows], table(headings, cells) if rows else _NOTHING)


@task("Release")
def history(line: str, channel: str | None = None, *, place: Place) -> None:
    """Show who moved a line's channels, when and why.

    channel: only this channel: --channel stable
    """
    from kiln.publish.lines import history_rows, load_line, require_channel

    settings = load_line(line).settings
    names = [require_channel(channel, settings)] if channel else list(settings.channels)
    rows = history_rows(place.choose_running(), line, names)
    headings = ("WHEN", "CHANNEL", "BY", "ACTION", "AMI", "RECIPE", "WHY")
    keys = ("at", "channel", "by", "action", "ami_id", "recipe", "why")
    cells = [[str("-" if move[key] is None else move[key]) for key in keys] for move in rows]
    output(rows, table(headings, cells) if rows else _NOTHING)


@task("Release")
def retire(apply: bool = False, regions: str | None = None, *, place: Place) -> int:
    """Retire AMIs that no channel holds and nothing uses.

    apply: do the next step of each AMI that would go; otherwise nothing is changed
    regions: instead of all that are published to: --regions eu-west-1,us-west-2
    """
    from kiln.publish import lines
    from kiln.publish import retire as retiring

    shown = lines.regions_to_show(regions)
    target = place.choose_running()
    if regions is None:
        shown = lines.with_published(shown, target)
    plan = retiring.plan_retirement(target, shown, lines.retire_settings(), ask=apply)
    if apply:
        plan = retiring.retire(target, plan)
    data = {
        "would": [asdict(step) for step in plan.would],
        "kept": [asdict(step) for step in plan.kept],
        "opened": plan.opened,
    }
    output(data, *retirement_text(plan, applied=apply))
    return 1 if any(step.error for step in plan.would) else 0


def retirement_text(plan: Retirement, *, applied: bool) -> list[str | Table]:
    """Return what goes and what stays, and who may use what beyond the declaration."""
    going = plan.would
    rows = [
        ("FAILED" if step.error else step.step, step.ami_id, step.region, step.error or step.why)
        for step in going
    ] + [("keep", step.ami_id, step.region, step.why) for step in plan.kept]
    if not rows:
        return ["there is no AMI of AMI Kiln here"]
    failed = sum(bool(step.error) for step in going)
    if not going:
        last = "nothing had to go" if applied else "nothing would go"
    elif applied:
        last = f"{len(going) - failed} of {len(rows)} AMIs have gone one step"
        last += f", {failed} could not" if failed else ""
    else:
        last = f"{len(going)} of {len(rows)} AMIs would go one step; --apply does it"
    beyond = [f"open beyond `share`: {what}" for what in plan.opened]
    return [table(("STEP", "AMI", "REGION", "WHY"), rows), *beyond, last]


@task("Release")
def sweep(
    apply: bool = False,
    run: str | None = None,
    older_than: int = 24,
    regions: str | None = None,
    *,
    place: Place,
) -> int:
    """Find leftover resources of runs; --apply deletes them.

    ./invoke sweep --run 20261121T031342Z-f94c --apply

    apply: remove what was found; otherwise nothing is changed
    run: only what this run has left, however young: --run 20261121T031342Z-f94c
    older_than: hours since the run began: --older-than 48 (default: 24)
    regions: instead of all regions of the account: --regions eu-west-1,us-west-2
    """
    from datetime import timedelta

    from kiln.base import vocabulary
    from kiln.publish import sweep as sweeping
    from kiln.publish.regions import named_regions

    if older_than < 1:
        raise KilnError(
            f"--older-than {older_than}: runs that began less than an hour ago may be at work",
            hint="give at least 1",
        )
    if run is not None:
        vocabulary.RUN_ID.required(run, "--run")
    named = named_regions(regions) if regions is not None else None
    target = place.choose_running()
    everywhere = named or sweeping.regions_of_account(target)
    left = sweeping.leftovers(target, everywhere, timedelta(hours=older_than), run)
    done = sweeping.sweep(target, left) if apply else []
    failed = [leftover for leftover in done if leftover.error]
    data = {
        "found": [asdict(leftover) for leftover in left],
        "removed": [asdict(leftover) for leftover in done if not leftover.error],
        "failed": [asdict(leftover) for leftover in failed],
    }
    rows = [
        (
            *(item.region, item.kind, item.id, item.run_id),
            item.error or ("removed" if apply else ""),
        )
        for item in (done if apply else left)
    ]
    text = [table(("REGION", "KIND", "ID", "RUN", ""), rows)] if left else []
    last = (
        f"{len(left)} resources; --apply removes them"
        if left
        else "no run has left anything behind"
    )
    output(data, *text, *([] if left and apply else [last]))
    return 1 if failed else 0


@task("Release", "provenance.verify")
def verify_provenance(ami: str, key: str | None = None, *, place: Place) -> int:
    """Verify who built a published AMI, from what.

    ./invoke provenance.verify ami-0123456789abcdef0

    ami: the AMI, in the region of --region: ami-0123456789abcdef0
    key: the signer's public key (default: that of `publish.sign`): --key key.pem
    """
    from kiln.base import vocabulary
    from kiln.cloud.images import find_image
    from kiln.publish import lines, provenance

    vocabulary.AMI_ID.required(ami, "--ami")
    trusted = provenance.key_in_file(Path(key)) if key else None
    target = place.choose_running()
    if trusted is None:
        image = find_image(target, ami)
        settings = lines.line_settings().get(str(image.line)) if image else None
        if settings is None or settings.sign is None:
            raise KilnError(
                f"cannot verify {ami}: no signing key is configured",
                hint="name the public key with --key FILE, or set `publish.sign` in amis.yaml",
            )
        trusted = provenance.public_key(settings.sign, target)
    statement = provenance.verify_image(target, ami, trusted)
    data = {**asdict(statement), "matches": not statement.wrong}
    said = [f"{name:13} {value}" for name, value in statement.said.items()]
    wrong = [f"wrong         {why}" for why in statement.wrong]
    match = f"{ami} in {statement.region} is what its signed statement says"
    output(data, "\n".join([*said, *(wrong or [match])]))
    return 1 if statement.wrong else 0
