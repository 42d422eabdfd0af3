"""What runs and AMIs cost."""

from __future__ import annotations

from invoke import Context

from kiln.base.errors import KilnError
from kiln.cli.flags import JSON, PLACE, RECORDS, account_help, positive_number, replaces_settings
from kiln.cli.front import show, task


@task(
    name="cost",
    positional=[],
    help={
        "run": "a run: its record, id, AMI or AMI name; otherwise all AMIs: --run NAME",
        "line": "the AMIs of a line instead: --line al2023/lts/base/x86_64",
        "months": "how long the snapshots are kept: --months 6 (default: 1)",
        "regions": "instead of all that are published to: --regions eu-west-1,us-west-2",
        **PLACE,
        **account_help(RECORDS),
        **JSON,
    },
)
@replaces_settings(RECORDS)
def cost_(
    c: Context,
    aws_flags: dict[str, str],
    run: str = "",
    line: str | None = None,
    months: str = "1",
    regions: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> None:
    """List prices of a run's instances, of snapshots in all regions, and of their copies."""
    from kiln.base.tags import LINE, RUN_ID
    from kiln.cli import fetched_records, targets
    from kiln.pipeline import kept_records
    from kiln.publish import cost as costs
    from kiln.publish import line_flags

    if run and line:
        raise KilnError("a run and --line exclude each other", hint="give one of them")
    kept = positive_number(months, "--months")
    if run:
        fetched_records.bring_for_names(aws_flags, run)
    record = kept_records.find_record(run) if run else None
    only = {LINE: line_flags.row_of(line).line} if line else {}
    if record:
        only = {RUN_ID: record.run_id}
    shown = line_flags.regions_to_show(regions)
    place = line_flags.answering(
        targets.choose(target, region or (record.region if record else None))
    )
    if regions is None:
        shown = line_flags.with_published(shown, place)
    total, number = costs.images_cost(place, shown, kept, only=only)
    whole = total + (costs.run_cost(record) if record else costs.Cost())
    show(
        {**whole.as_json(), "months": kept, "images": number, "of": run or line or "all"},
        as_json=json,
        text=lambda data: costs.cost_lines(whole, kept),
    )
