"""Tasks of releases: publish, promote, rollback, channels, history, retire, sweep, provenance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import vocabulary
from kiln.base.errors import KilnError, did_you_mean
from kiln.cli.options import Place, RecordSettings
from kiln.cli.output import log, output, table
from kiln.cli.task import task

if TYPE_CHECKING:
    from rich.table import Table

    from kiln.publish.retire import Retirement

_NOTHING = "no releases yet; publish one: ./invoke publish --name NAME"


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

    ./invoke publish al2023-580.178.04-open-cuda13.0-base-x86_64 --smoke

    name: the AMI's name in the matrix, as ./invoke list shows it
    ami: the AMI to publish (default: the row's newest verified one): --ami ami-0123456789abcdef0
    regions: instead of the row's: --regions eu-west-1,us-west-2
    smoke: boot the image of each region and check it before its channel moves
    """
    from kiln.matrix import flags, load
    from kiln.pipeline import verify
    from kiln.publish import lines
    from kiln.publish.publish import publish_row

    (recipe,) = flags.select(load.load_recipes(), name=name)
    settings = lines.with_regions(load.load_publishing()[recipe.name], regions)
    line = lines.Line(recipe, settings)
    vocabulary.AMI_ID.optional(ami, "--ami")
    target = place.choose()
    boot = verify.smoke_test(install=not no_install) if smoke else None
    bucket = records.open_bucket(target, recipe)
    done = publish_row(line, target, ami_id=ami, why=why, say=log, smoke=boot, bucket=bucket)
    release = done.release
    output(done.steps, f"{release.channel} of {release.line} holds {release.ami_name}")


@task("Release")
def promote(
    line: str, to: str, accept: bool = False, dry_run: bool = False, why: str = "", *, place: Place
) -> int:
    """Promote a release to the next channel.

    ./invoke promote al2023/lts/base/x86_64 stable --dry-run

    to: the channel to promote to: --to stable
    accept: accept major differences from the present image
    dry_run: show the gates and move nothing
    """
    from kiln.publish.lines import load_line
    from kiln.publish.promote import promote_line

    promotion = promote_line(
        load_line(line), to, place.choose(), accept=accept, dry_run=dry_run, why=why, say=log
    )
    release, gates = promotion.release, promotion.gates
    closed = [gate for gate in gates if not gate.open]
    channel = f"{release.channel} of {release.line}"
    text = f"{channel} {'would hold' if dry_run else 'holds'} {release.ami_name}"
    if closed:
        accept_them = all(gate.acceptable for gate in closed)
        text = f"{channel} stays as it is{'; --accept opens these gates' if accept_them else ''}"
    data = {
        "line": release.line,
        "channel": release.channel,
        "allowed": promotion.allowed,
        "gates": gates,
        "steps": promotion.steps,
    }
    rows = [("closed" if gate in closed else "open", gate.name, gate.evidence) for gate in gates]
    output(data, table((), rows), text)
    return int(bool(closed))


@task("Release")
def rollback(line: str, channel: str, to: str | None = None, why: str = "", *, place: Place) -> int:
    """Restore a channel's previous image in all regions.

    ./invoke rollback al2023/lts/base/x86_64 stable --why 'CVE-2026-1234'

    channel: the channel to roll back: --channel stable
    to: an AMI that the channel held, instead of the previous one: --to ami-0123456789abcdef0
    """
    from kiln.publish.lines import load_line
    from kiln.publish.promote import roll_back

    row = load_line(line)
    vocabulary.AMI_ID.optional(to, "--to")
    back = roll_back(row, channel, place.choose(), to=to, why=why, say=log)
    text = f"{channel} of {line} holds {back.release.ami_name} again"
    output(back.steps, text)
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
    rows = lines.channel_rows(target, shown, settings, only=only, line=wanted)
    headings = ("LINE", "CHANNEL", "REGION", "AMI", "DRIVER", "CUDA", "AGE", "VERDICT", "")
    cells = []
    for row in rows:
        age = "-" if row.age_days is None else f"{row.age_days:.0f} d"
        verdict = "verified" if row.verified else "NOT VERIFIED"
        held = (row.line, row.channel, row.region, row.ami_id, row.driver or "-", row.cuda or "-")
        cells.append((*held, age, verdict, row.drift))
    output(rows, table(headings, cells) if rows else _NOTHING)


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

    apply: take the next step of each AMI; without it, only show
    regions: instead of all that are published to: --regions eu-west-1,us-west-2
    """
    from kiln.publish import lines
    from kiln.publish import retire as retiring

    shown, settings = lines.regions_to_show(regions), lines.retire_settings()
    target, only = place.choose_running(), regions is not None
    plan = retiring.plan_retirement(target, shown, settings, only=only, ask=apply)
    if apply:
        plan = retiring.retire(target, plan)
    output(plan, *retirement_text(plan, applied=apply))
    return 1 if any(step.error for step in plan.would) else 0


def retirement_text(plan: Retirement, *, applied: bool) -> list[str | Table]:
    """Return what goes and what stays, and who may use what beyond the declaration."""
    going, failed = plan.would, sum(bool(step.error) for step in plan.would)
    rows = [
        ("FAILED" if step.error else step.step, step.ami_id, step.region, step.error or step.why)
        for step in (*going, *plan.kept)
    ]
    if not rows:
        return ["no AMIs of AMI Kiln found"]
    if not going:
        last = "no AMIs to retire"
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

    apply: delete the resources; without it, only show
    run: only this run's resources, whatever their age: --run 20261121T031342Z-f94c
    older_than: hours since the run began: --older-than 48 (default: 24)
    regions: instead of all regions of the account: --regions eu-west-1,us-west-2
    """
    from datetime import timedelta

    from kiln.publish import sweep as sweeping
    from kiln.publish.regions import named_regions

    if older_than < 1:
        raise KilnError("--older-than is at least 1: a younger run may be at work")
    vocabulary.RUN_ID.optional(run, "--run")
    named = named_regions(regions) if regions is not None else None
    target = place.choose_running()
    everywhere = named or sweeping.regions_of_account(target)
    left = sweeping.leftovers(target, everywhere, timedelta(hours=older_than), run)
    done = sweeping.sweep(target, left) if apply else []
    failed = [item for item in done if item.error]
    removed = [item for item in done if not item.error]
    rows = [
        (item.region, item.kind, item.id, item.run_id, item.error or ("removed" if apply else ""))
        for item in done or left
    ]
    last = f"{len(left)} resources; --apply removes them"
    if apply or not left:
        last = f"{len(removed)} removed" if left else "no leftover resources found"
    data = {"found": left, "removed": removed, "failed": failed}
    output(data, table(("REGION", "KIND", "ID", "RUN", ""), rows), last)
    return 1 if failed else 0


@task("Release", "provenance.verify")
def verify_provenance(ami: str, key: str | None = None, *, place: Place) -> int:
    """Verify the signed provenance of a published AMI.

    ./invoke provenance.verify ami-0123456789abcdef0

    ami: the AMI, in the region of --region: ami-0123456789abcdef0
    key: the signer's public key (default: that of `publish.sign`): --key key.pem
    """
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
    data = {**vars(statement), "matches": not statement.wrong}
    rows = [*statement.said.items(), *(("wrong", why) for why in statement.wrong)]
    match = f"{ami} in {statement.region} is what its signed statement says"
    output(data, table((), rows), *([] if statement.wrong else [match]))
    return 1 if statement.wrong else 0


@task("Release", "iam.policy")
def iam_policy(
    task: str = "build",
    regions: str | None = None,
    account: str | None = None,
    list: bool = False,  # noqa: A002
) -> None:
    """Print the least-privilege IAM policy of a task.

    ./invoke iam.policy --task build --regions eu-west-3,us-east-1 --account 111122223333
    ./invoke iam.policy --list

    task: build (default), settings, publish, promote, retire, …: --task publish
    regions: where builds may launch, instead of AMI Kiln's own list: --regions eu-west-3
    account: only resources of this account: --account 111122223333
    list: show the policies, their tasks and who attaches them
    """
    from kiln import facts
    from kiln.cloud import iam
    from kiln.publish.regions import require_regions

    policies = facts.table("iam")["policies"]
    if list:
        rows = [(name, each["tasks"], each["who"]) for name, each in policies.items()]
        output(policies, table(("POLICY", "TASKS", "ATTACHED TO"), rows))
        return
    if task not in policies:
        raise KilnError(f"there is no policy for {task}", hint=did_you_mean(task, policies))
    vocabulary.ACCOUNT.optional(account, "--account")
    chosen = require_regions(regions.split(","), "--regions") if regions else []
    part = "statements" if task == "build" else task
    document = iam.policy(part, regions=chosen, account=account or "")
    output(document, json.dumps(document, indent=2))
