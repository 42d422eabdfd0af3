"""`fleet.install` and `fleet.uninstall`: telemetry on running instances, wave by wave.

A wave is over when metrics and a test event of each of its instances are in CloudWatch. What fails
is put back as it was, and the next wave does not start when more failed than may.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.times import utc_now
from kiln.cloud.target import Target
from kiln.fleet import cloudwatch
from kiln.fleet.commands import (
    CommandAnswer,
    CommandDocument,
    named,
    reminding,
    run_command,
)
from kiln.fleet.document import StoredBundle, publish_document, store_bundle
from kiln.fleet.machines import FleetMachine, lost_machines, managed_machines
from kiln.fleet.status import FleetStatus, ask_machines, fleet_status, read_state
from kiln.fleet.waves import Wave, WaveSize, parse_max_errors, plan_waves
from kiln.telemetry import Telemetry
from kiln.telemetry.bundle import bundle_script

Say = Callable[[str], None]
# Seconds for the document itself: the agent's package, the bundle, systemd.
_COMMAND = 900.0
# Seconds between two looks at whether the instances still run.
_LOOK = 3.0


@dataclass(frozen=True)
class HowToInstall:
    """What a person asks of an installation. `patience`: how many seconds a wave waits for
    CloudWatch."""

    settings: Telemetry
    sizes: Sequence[WaveSize]
    max_errors: str = "0"
    replace: bool = False
    bucket: str = ""
    patience: float = 900.0


@dataclass(frozen=True)
class Installation:
    """What became of it. `already` report with this bundle or by their image; `skipped` cannot be
    installed on, with why; `left` were in no wave that started."""

    waves: tuple[Wave, ...]
    stopped: bool
    already: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    bundle: str = ""
    document: str = ""
    machines: Mapping[str, FleetStatus] = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """What `fleet.install --json` prints."""
        return {
            "waves": [
                {
                    "instances": wave.instances,
                    "ok": wave.ok,
                    "failed": wave.failed,
                    "rolled_back": wave.rolled_back,
                    "why": wave.why,
                    "not_put_back": wave.kept,
                    "seconds": {step: round(took, 1) for step, took in wave.seconds.items()},
                }
                for wave in self.waves
            ],
            "stopped": self.stopped,
            "already": list(self.already),
            "skipped": dict(self.skipped),
            "left": list(self.left),
            "bundle_sha256": self.bundle,
            "document": self.document,
            "seconds": round(self.seconds, 1),
        }


def install_fleet(
    target: Target, machines: Sequence[FleetMachine], how: HowToInstall, say: Say
) -> Installation:
    """Install telemetry on these instances.

    Run again, it continues where it stopped: instances that already report are left as they are.
    Raises KilnError (exit status 1) if AWS refuses, or if nothing can be installed on any of them.
    """
    began = time.monotonic()
    script = bundle_script(how.settings)
    document = publish_document(target)
    stored = store_bundle(target, how.bucket, script)
    say(f"document {document.name} version {document.version}, bundle sha256 {stored.sha256[:12]}")
    states = {
        status.instance_id: status
        for status in fleet_status(target, machines, how.settings, waits=reminding(say))
    }
    already = tuple(key for key, status in states.items() if _done(status, stored))
    skipped = {key: why for key, status in states.items() if (why := _hindrance(status))}
    due = [key for key in states if key not in already and key not in skipped]
    for key, why in skipped.items():
        say(f"skipped {key}: {why}")
    if already:
        say(f"{len(already)} already reporting: {named(already)}")
    if not due and not already:
        raise operation_failed(
            "telemetry can be installed on none of these instances:\n  "
            + "\n  ".join(f"{key}: {why}" for key, why in skipped.items()),
            hint="./invoke fleet.status shows what each one lacks",
        )
    planned = plan_waves(due, how.sizes)
    allowed = parse_max_errors(how.max_errors, len(due))
    done: list[Wave] = []
    for number, ids in enumerate(planned, start=1):
        say(f"wave {number} of {len(planned)}: {len(ids)} of {len(due)} instances: {named(ids)}")
        with _resumable(ids):
            wave = _run_wave(target, document, stored, how, {key: states[key] for key in ids}, say)
        done.append(wave)
        took = ", ".join(f"{step} {seconds:.0f} s" for step, seconds in wave.seconds.items())
        say(f"wave {number}: {len(wave.ok)} reporting, {len(wave.failed)} failed ({took})")
        if sum(len(wave.failed) for wave in done) > allowed:
            break
    stopped = sum(len(wave.failed) for wave in done) > allowed
    tried = {key for wave in done for key in wave.instances}
    return Installation(
        waves=tuple(done),
        stopped=stopped,
        already=already,
        skipped=skipped,
        left=tuple(key for key in due if key not in tried),
        bundle=stored.sha256,
        document=f"{document.name} version {document.version}, sha256 {document.sha256}",
        machines=states,
        seconds=time.monotonic() - began,
    )


def uninstall_fleet(
    target: Target, machines: Sequence[FleetMachine], say: Say
) -> dict[str, CommandAnswer]:
    """Remove telemetry from these instances; the answer of each instance that has it, or may.

    A running instance that never registered with Systems Manager does not have it; one that is
    stopped may. Raises KilnError (exit status 1) if AWS refuses.
    """
    running = [machine.instance_id for machine in machines if machine.runs]
    managed = managed_machines(target, running)
    ids = [
        instance_id
        for instance_id in running
        if instance_id in managed and managed[instance_id].ping == "Online"
    ]
    document = publish_document(target)
    answers = ask_machines(target, ids, reminding(say))
    states = {key: read_state(answer.output) for key, answer in answers.items() if answer.ok}
    silent = {key: answer for key, answer in answers.items() if not answer.ok}
    for key, info in managed.items():
        if key not in ids:
            silent[key] = CommandAnswer(False, why=f"Systems Manager's agent is {info.ping}")
    for machine in machines:
        if machine.state in ("stopping", "stopped"):
            silent[machine.instance_id] = CommandAnswer(False, why=f"it is {machine.state}")
    ours = {key: item for key, item in states.items() if item.bundle or item.agent_package}
    say(f"the bundle is installed on {len(ours)} of {len(ids)} instances")
    bare = [key for key, status in ours.items() if status.agent_package]
    return silent | _document(target, document, list(ours), bare, say, action="uninstall")


@contextmanager
def _resumable(ids: Sequence[str]) -> Iterator[None]:
    """What ends the program inside a wave says how to go on."""
    how = f"the same command continues here; {named(ids)} may be installed in part"
    try:
        yield
    except KilnError as error:
        hint = "; ".join(text for text in (error.hint, how) if text)
        raise KilnError(error.message, hint=hint, exit_status=error.exit_status) from None
    except KeyboardInterrupt:
        raise operation_failed("interrupted", hint=how) from None


def _done(status: FleetStatus, stored: StoredBundle) -> bool:
    """Whether there is nothing to do: it reports, with this bundle or by its own image.

    What a run has left half-made may still report for some minutes as it did before.
    """
    state = status.machine_state
    if state is None or not status.reports:
        return False
    return state.image or (state.bundle == stored.sha256 and not state.unconfirmed)


def _hindrance(status: FleetStatus) -> str:
    """Why telemetry cannot be installed on an instance, "" if it can."""
    why = "; ".join(str(lack) for lack in status.missing if lack.stops)
    if not why and status.machine_state and status.machine_state.by_hand:
        return "telemetry.bundle was installed by hand: run it there with --uninstall first"
    return why


def _run_wave(
    target: Target,
    document: CommandDocument,
    stored: StoredBundle,
    how: HowToInstall,
    states: Mapping[str, FleetStatus],
    say: Say,
) -> Wave:
    wave = Wave(list(states))
    mark = f"kiln-fleet-{secrets.token_hex(4)}"
    began = utc_now()
    bare = [key for key, status in states.items() if not status.agent_version]
    # A run that was killed may have brought the agent.
    came = [
        *bare,
        *(
            k
            for k, status in states.items()
            if status.machine_state and status.machine_state.agent_package
        ),
    ]
    with _timed(wave, "install"):
        answers = _document(
            target, document, wave.instances, bare, say,
            action="install", source=stored.url, sha256=stored.sha256, mark=mark,
            replace="yes" if how.replace else "no",
        )  # fmt: skip
    wave.why = {key: answer.why for key, answer in answers.items() if not answer.ok}
    installed = [key for key in states if key not in wave.why]
    with _timed(wave, "report"):
        late = _wait_for_reports(target, how, {k: states[k] for k in installed}, mark, began, say)
    wave.why |= late
    wave.failed = [key for key in states if key in wave.why]
    wave.ok = [key for key in states if key not in wave.why]
    if wave.ok:
        with _timed(wave, "confirm"):
            _confirm(target, document, wave.ok, say)
    for key in wave.failed:
        say(f"failed {key}: {wave.why[key]}")
    if wave.failed:
        with _timed(wave, "put back"):
            _put_back(target, document, wave, came, say)
    return wave


@contextmanager
def _timed(wave: Wave, step: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    wave.seconds[step] = time.monotonic() - began


def _confirm(target: Target, document: CommandDocument, ids: Sequence[str], say: Say) -> None:
    """Note on instances that report that what they have now is what a later failure puts back."""
    for key, answer in _document(target, document, ids, (), say, action="confirm").items():
        if not answer.ok:
            say(f"{key} reports, which it could not note: {answer.why}")


def _put_back(
    target: Target, document: CommandDocument, wave: Wave, came: Sequence[str], say: Say
) -> None:
    """Take back what the wave did to its instances that failed. On those of `came` the agent's
    package came with us."""
    lost = lost_machines(target, wave.failed)
    wave.kept = {key: f"it is {state}" for key, state in lost.items()}
    alive = [key for key in wave.failed if key not in lost]
    answers = _document(target, document, alive, came, say, action="put-back")
    for key, answer in answers.items():
        if answer.ok:
            wave.rolled_back.append(key)
            say(f"put back {key} as it was")
        else:
            wave.kept[key] = answer.why
            say(f"{key} could not be put back: {answer.why}")


def _document(
    target: Target,
    document: CommandDocument,
    ids: Sequence[str],
    bare: Sequence[str],
    say: Say,
    *,
    action: str,
    **parameters: str,
) -> dict[str, CommandAnswer]:
    """Run our document; on those that were without the agent its package comes or goes with it."""
    document_parameters = {
        name: [value] for name, value in {"action": action, **parameters}.items()
    }
    package = "Install" if action == "install" else "Uninstall"
    batches = [
        ([key for key in ids if key not in bare], document_parameters),
        ([key for key in ids if key in bare], {**document_parameters, "package": [package]}),
    ]
    return run_command(target, document, batches, patience=_COMMAND, waits=reminding(say))


def _wait_for_reports(
    target: Target,
    how: HowToInstall,
    states: Mapping[str, FleetStatus],
    mark: str,
    began: datetime,
    say: Say,
) -> dict[str, str]:
    """Wait until metrics and the test event of each instance are in CloudWatch; what is missing of
    those that stay away."""
    deadline = time.monotonic() + how.patience
    waits = reminding(say)
    metrics: set[str] = set()
    events: set[str] = set()
    lost: dict[str, str] = {}
    looked = time.monotonic()
    while True:
        waiting = [key for key in states if not (key in metrics and key in events)]
        waiting = [key for key in waiting if key not in lost]
        if not waiting:
            return lost
        missing = {key: _what_is_missing(key in metrics, key in events, how) for key in waiting}
        if time.monotonic() > deadline:
            return lost | {
                key: f"{what} in {how.patience:.0f} s after the installation"
                for key, what in missing.items()
            }
        waits("; ".join(f"{key}: {what}" for key, what in list(missing.items())[:4]))
        time.sleep(max(target.wait_seconds, 1.0))
        metrics |= _fresh_metrics(target, how, {k: states[k] for k in waiting}, began)
        events |= cloudwatch.arrived_tests(target, how.settings.log_group, mark, began)
        if time.monotonic() - looked > _LOOK:
            looked = time.monotonic()
            lost |= {key: f"is {s}" for key, s in lost_machines(target, waiting).items()}


def _fresh_metrics(
    target: Target, how: HowToInstall, states: Mapping[str, FleetStatus], began: datetime
) -> set[str]:
    """Those whose metrics are from after the installation. A metric is of a whole minute: where one
    came before, only the next minute counts."""
    if not how.settings.metrics:
        return set(states)
    this_minute = began.replace(second=0, microsecond=0)
    last_seen = cloudwatch.last_metrics(target, how.settings, list(states), this_minute)
    return {
        key
        for key, newest in last_seen.items()
        if newest >= this_minute + timedelta(minutes=states[key].last_metric is not None)
    }


def _what_is_missing(metric: bool, event: bool, how: HowToInstall) -> str:
    parts = [
        *([] if metric else [f"no GPU metric in {how.settings.namespace}"]),
        *([] if event else [f"no test event in {how.settings.log_group}"]),
    ]
    return " and ".join(parts)
