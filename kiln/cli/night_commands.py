"""The plan of a night: what a machine that shares nothing with the planner runs for each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln.cli import fetched_records
from kiln.cli.front import note
from kiln.cloud.target import Target
from kiln.pipeline import records
from kiln.pipeline.records import RecordsBucket
from kiln.publish.night_plan import Due, Night


def commands_of(night: Night, target: Target, aws_flags: Mapping[str, str]) -> dict[str, str]:
    """What a machine that shares nothing with this one runs for each row that is due."""
    return {
        due.recipe.name: _command(
            due, target, fetched_records.shelf_for(aws_flags, target, due.recipe)
        )
        for due in night.due
    }


def plan_data(night: Night, commands: Mapping[str, str]) -> dict[str, Any]:
    """A night's plan as `nightly.plan --json` prints it and `nightly.finish --plan` reads it."""
    return {
        "items": [
            {
                "row": due.recipe.name,
                "command": commands[due.recipe.name],
                "why": due.why,
            }
            for due in night.due
        ],
        "skipped": [
            {
                "row": row.row,
                "why": row.why,
                "ami_id": row.ami_id,
                "line": row.line,
                "channel": row.channel,
            }
            for row in night.skipped
        ],
        "impossible": [{"row": row.recipe.name, "why": row.why} for row in night.impossible],
    }


def _command(due: Due, target: Target, shelf: RecordsBucket | None) -> str:
    name, where = due.recipe.name, f"--target {target.kind} --region {target.region}"
    if shelf:
        where += f" --records-bucket {shelf.bucket}"
    if not due.ami_id:
        return f"./invoke build --name {name} {where} && ./invoke publish --name {name} {where}"
    publish = f"./invoke publish --name {name} --ami {due.ami_id} {where}"
    if shelf and _is_kept(shelf, name, due.ami_id):
        return publish
    return f"./invoke verify --ami {due.ami_id} {where} && {publish}"


def _is_kept(shelf: RecordsBucket, row: str, ami_id: str) -> bool:
    """Whether other machines find the record of a verification of the AMI."""
    kept = shelf.fetch_row(row, note)
    return any(
        build.run_id in kept and build.ami_id == ami_id and build.status == "verified"
        for build in records.all_of(row)
    )
