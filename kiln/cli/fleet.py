"""Tasks for machines that run already: fleet.status, fleet.install, fleet.uninstall."""

from __future__ import annotations

from typing import TYPE_CHECKING

from invoke import Context

from kiln.base.errors import KilnError
from kiln.cli.flags import JSON, PLACE, positive_number
from kiln.cli.front import note, show, task

if TYPE_CHECKING:
    from kiln.cloud.target import Target
    from kiln.fleet.machines import FleetMachine
    from kiln.telemetry import Telemetry

TARGETS = {"targets": "which instances: --targets tag:Team=ml, --targets i-…,i-…, --targets all"}
WHERE = {
    "namespace": "of the GPU metrics: --namespace CWAgent",
    "log-group": "of the events: --log-group /ec2/accelerated/accel-event-log",
}


@task(help={**TARGETS, **WHERE, **PLACE, **JSON})
def status(
    c: Context,
    targets: str,
    namespace: str | None = None,
    log_group: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """Which instances report GPU metrics and events, and what the others lack."""
    from kiln.fleet.status import fleet_status, status_table

    settings = _settings("compute", namespace=namespace, log_group=log_group)
    place, machines = _chosen(targets, target, region)
    rows = fleet_status(place, machines, settings, note)
    show([row.as_json() for row in rows], as_json=json, text=lambda _: status_table(rows))
    return 0


@task(
    help={
        **TARGETS,
        "profile": "compute, graphics, full or none (events only): --profile compute",
        "waves": "sizes of the waves, numbers or percent of all: --waves 1,10%,100%",
        "max-errors": "so many may fail, or percent of all, before it stops: --max-errors 2",
        "replace": "put the agent's own configuration aside; otherwise ours is appended to it",
        "bucket": "for the installer, otherwise ami-kiln-fleet-ACCOUNT-REGION: --bucket my-bucket",
        "interval": "seconds between two measurements: --interval 60",
        "flush-interval": "seconds between two calls of the agent: --flush-interval 60",
        "patience": "minutes that a wave waits for metrics and test events: --patience 15",
        **WHERE,
        **PLACE,
        **JSON,
    }
)
def install(
    c: Context,
    targets: str,
    profile: str = "compute",
    waves: str = "1,10%,100%",
    max_errors: str = "0",
    replace: bool = False,
    bucket: str | None = None,
    interval: int = 60,
    flush_interval: int = 60,
    patience: str = "15",
    namespace: str | None = None,
    log_group: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """Bring GPU metrics and events to running instances, in waves, over Systems Manager."""
    from kiln.base import vocabulary
    from kiln.fleet.document import fleet_bucket
    from kiln.fleet.install import (
        HowToInstall,
        allowed_errors,
        install_fleet,
        installation_text,
        plan_waves,
        write_installation,
    )

    settings = _settings(
        profile,
        interval=interval,
        flush_interval=flush_interval,
        namespace=namespace,
        log_group=log_group,
    )
    plan_waves([], waves)
    allowed_errors(max_errors, 1)
    minutes = positive_number(patience, "--patience")
    if bucket is not None:
        vocabulary.BUCKET.required(bucket, "--bucket")
    place, machines = _chosen(targets, target, region)
    if not machines:
        raise KilnError(f"--targets {targets}: no such instance runs in {place.where}")
    how = HowToInstall(
        settings=settings,
        waves=waves,
        max_errors=max_errors,
        replace=replace,
        bucket=bucket or fleet_bucket(place),
        patience=minutes * 60,
    )
    done = install_fleet(place, machines, how, note)
    folder = write_installation(done)
    show(done.as_json(), as_json=json, text=lambda _: installation_text(done))
    note(f"report: {folder}/report.html")
    return 1 if done.stopped else 0


@task(
    help={
        **TARGETS,
        "clean": "delete the SSM document and the installers in S3 too, unless an instance failed",
        "bucket": "of the installers, otherwise ami-kiln-fleet-ACCOUNT-REGION: --bucket my-bucket",
        **PLACE,
        **JSON,
    }
)
def uninstall(
    c: Context,
    targets: str,
    clean: bool = False,
    bucket: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """Take telemetry out of running instances again: everything is as it was before."""
    from kiln.base import vocabulary
    from kiln.fleet.document import fleet_bucket, remove_stored
    from kiln.fleet.install import uninstall_fleet

    if bucket is not None:
        vocabulary.BUCKET.required(bucket, "--bucket")
    place, machines = _chosen(targets, target, region)
    answers = uninstall_fleet(place, machines, note)
    failed = {key: answer.why for key, answer in answers.items() if not answer.ok}
    gone = remove_stored(place, bucket or fleet_bucket(place)) if clean and not failed else []
    data = {"ok": [key for key in answers if key not in failed], "failed": failed, "removed": gone}

    def text(_: object) -> str:
        lines = [f"ok      {key}" for key in data["ok"]]
        lines += [f"failed  {key}  {why}" for key, why in failed.items()]
        return (
            "\n".join([*lines, *(f"removed {removed}" for removed in gone)])
            or "no instance has AMI Kiln telemetry"
        )

    show(data, as_json=json, text=text)
    return 1 if failed else 0


def _chosen(targets: str, target: str, region: str | None) -> tuple[Target, list[FleetMachine]]:
    """Where the instances are, and which. Raises KilnError (exit status 2) for other text."""
    from kiln.cli import targets as places
    from kiln.fleet.machines import find_machines, parse_targets

    selected = parse_targets(targets)
    place = places.choose(target, region)
    return place, find_machines(place, selected)


def _settings(
    profile: str,
    *,
    interval: int = 60,
    flush_interval: int = 60,
    namespace: str | None = None,
    log_group: str | None = None,
) -> Telemetry:
    """Settings from flags. Raises KilnError (exit status 2) with the nearest right value."""
    from pydantic import ValidationError

    from kiln.telemetry import Telemetry

    named = {"namespace": namespace, "log_group": log_group}
    try:
        return Telemetry.model_validate(
            {
                "profile": profile,
                "interval": interval,
                "flush_interval": flush_interval,
                **{key: value for key, value in named.items() if value is not None},
            }
        )
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise KilnError(message.removeprefix("Value error, ")) from None
