"""`fleet.install` and `fleet.uninstall`: telemetry on running instances, wave by wave.

A wave is over when metrics and a test event of each of its instances are in CloudWatch. What fails
is put back as it was, and the next wave does not start when more failed than may.
"""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kiln.base.errors import KilnError, operation_failed
from kiln.base.templates import render
from kiln.base.vocabulary import utc_now
from kiln.cloud.target import Target
from kiln.fleet.document import publish_document, store_bundle
from kiln.fleet.machines import (
    NOT_ENDED,
    CommandAnswer,
    Document,
    FleetMachine,
    Say,
    lost_machines,
    managed_machines,
    named,
    reminding,
    run_command,
)
from kiln.fleet.status import (
    STOPS,
    FleetStatus,
    MachineState,
    arrived_tests,
    ask_machines,
    fleet_status,
    last_metrics,
    online,
    read_state,
)
from kiln.telemetry.bundle import bundle_script
from kiln.telemetry.settings import Telemetry

# Seconds for the document itself: the agent's package, the bundle, systemd.
_COMMAND = 900.0
# How far the clock of this machine may be ahead of an instance's: AWS answers no request beyond.
_AHEAD = timedelta(minutes=5)


@dataclass(frozen=True)
class HowToInstall:
    """The wishes of a person for an installation. `patience`: how many seconds a wave waits for
    CloudWatch."""

    settings: Telemetry
    waves: str = "1,10%,100%"
    max_errors: str = "0"
    replace: bool = False
    bucket: str = ""
    patience: float = 900.0


@dataclass
class Wave:
    """A wave and its outcome. `why` says it for instances that failed, `not_put_back`
    for those that stay as they are."""

    instances: list[str]
    ok: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)
    not_put_back: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Installation:
    """The outcome. `already` report with this bundle or by their image; `skipped` cannot be
    installed on, with why; `left` were in no wave that started."""

    waves: Sequence[Wave]
    stopped: bool
    already: Sequence[str] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    left: Sequence[str] = ()
    bundle_sha256: str = ""

    def __str__(self) -> str:
        return render("fleet/installation.txt.j2", done=self).strip()


def plan_waves(ids: Sequence[str], waves: str) -> list[list[str]]:
    """Return the instances of each wave of `1,10%,100%`, in order. What no wave takes is left."""
    planned, rest = [], list(ids)
    for part in waves.split(","):
        count = max(1, math.ceil(_share("--waves", part, len(ids), least=1)))
        planned.append(rest[:count])
        rest = rest[count:]
    return [wave for wave in planned if wave]


def allowed_errors(text: str, total: int) -> int:
    """Return how many may fail before the next wave does not start: `2`, or `5%` of all."""
    return math.floor(_share("--max-errors", text, total, least=0))


def _share(flag: str, text: str, total: int, *, least: int) -> float:
    """Return a number of instances, or percent of all."""
    match = re.fullmatch(r"([0-9]{1,6})(%?)", text.strip())
    number = int(match[1]) if match else -1
    if not match or number < least or (match[2] and number > 100):
        raise KilnError(
            f"{flag}: {text.strip() or 'nothing'!r} is not a number of instances or a percentage",
            hint="for example --waves 1,10%,100% --max-errors 0",
        )
    return total * number / 100 if match[2] else number


@dataclass(frozen=True)
class _Document:
    """Our document, to be run on instances."""

    target: Target
    version: Document
    say: Say

    def run(
        self, action: str, ids: Sequence[str], bare: Sequence[str] = (), **parameters: str
    ) -> dict[str, CommandAnswer]:
        """Run an action; on `bare`, which had no agent, its package comes or goes with it."""
        values = {name: [value] for name, value in {"action": action, **parameters}.items()}
        package = {"package": ["Install" if action == "install" else "Uninstall"]}
        batches = [
            ([key for key in ids if key not in bare], values),
            ([key for key in ids if key in bare], {**values, **package}),
        ]
        return run_command(self.target, self.version, batches, patience=_COMMAND, say=self.say)


def install_fleet(
    target: Target, machines: Sequence[FleetMachine], how: HowToInstall, say: Say
) -> Installation:
    """Install telemetry on these instances.

    Run again, it continues where it stopped: instances that already report are left as they are.
    """
    document = _Document(target, publish_document(target), say)
    url, sha256 = store_bundle(target, how.bucket, bundle_script(how.settings))
    parameters = {"source": url, "sha256": sha256, "replace": "yes" if how.replace else "no"}
    shown = f"{document.version['DocumentName']} version {document.version['DocumentVersion']}"
    say(f"document {shown}, bundle sha256 {sha256[:12]}")
    states = {
        status.machine.instance_id: status
        for status in fleet_status(target, machines, how.settings, say)
    }
    already = [key for key, status in states.items() if _is_done(status, sha256)]
    skipped = {key: why for key, status in states.items() if (why := _hindrance(status))}
    due = [key for key in states if key not in already and key not in skipped]
    for key, why in skipped.items():
        say(f"skipped {key}: {why}")
    if already:
        say(f"{len(already)} already reporting: {named(already)}")
    if not due and not already:
        raise operation_failed(
            "telemetry can be installed on none of these instances",
            hint="./invoke fleet.status shows what each one lacks",
        )
    planned, allowed = plan_waves(due, how.waves), allowed_errors(how.max_errors, len(due))
    done, failed = list[Wave](), 0
    while len(done) < len(planned) and failed <= allowed:
        number, ids = len(done) + 1, planned[len(done)]
        say(f"wave {number} of {len(planned)}: {len(ids)} of {len(due)} instances: {named(ids)}")
        wave = _run_wave(document, parameters, how, {key: states[key] for key in ids})
        done.append(wave)
        failed += len(wave.failed)
        say(f"wave {number}: {len(wave.ok)} reporting, {len(wave.failed)} failed")
    tried = {key for wave in done for key in wave.instances}
    return Installation(
        waves=done,
        stopped=failed > allowed,
        already=already,
        skipped=skipped,
        left=[key for key in due if key not in tried],
        bundle_sha256=sha256,
    )


def uninstall_fleet(
    target: Target, machines: Sequence[FleetMachine], say: Say
) -> dict[str, CommandAnswer]:
    """Remove telemetry from these instances; return the answer of each one that has it, or may.

    A running instance that never registered with Systems Manager does not have it; one that is
    stopped may.
    """
    managed = managed_machines(target, [machine.instance_id for machine in machines])
    ids = online(machines, managed)
    document = _Document(target, publish_document(target), say)
    answers = ask_machines(target, ids, say)
    silent = {key: answer for key, answer in answers.items() if not answer.ok}
    for machine in machines:
        key = machine.instance_id
        if machine.state in ("stopping", "stopped"):
            silent[key] = CommandAnswer(False, why=f"it is {machine.state}")
        elif machine.runs and key in managed and key not in ids:
            why = f"Systems Manager's agent is {managed[key]['PingStatus']}"
            silent[key] = CommandAnswer(False, why=why)
    states = {key: read_state(answer.output) for key, answer in answers.items() if answer.ok}
    ours = [key for key, state in states.items() if state.bundle or state.agent_package]
    say(f"the bundle is installed on {len(ours)} of {len(ids)} instances")
    bare = [key for key in ours if states[key].agent_package]
    return silent | document.run("uninstall", ours, bare)


def _is_done(status: FleetStatus, sha256: str) -> bool:
    """Return True if there is nothing to do: it reports, with this bundle or by its own image.

    What a run has left half-made may still report for some minutes as it did before.
    """
    state = status.state
    if state is None or not status.reports:
        return False
    return bool(state.image) or (state.bundle == sha256 and not state.unconfirmed)


def _hindrance(status: FleetStatus) -> str:
    """Return why telemetry cannot be installed on an instance, "" if it can."""
    why = "; ".join(f"{what}: {why}" for what, why in status.missing.items() if what in STOPS)
    if not why and status.state and status.state.bundle_by_hand:
        return "telemetry.bundle was installed by hand: run it there with --uninstall first"
    return why


def _run_wave(
    document: _Document,
    parameters: Mapping[str, str],
    how: HowToInstall,
    states: Mapping[str, FleetStatus],
) -> Wave:
    wave, say = Wave(list(states)), document.say
    mark, began = f"kiln-fleet-{secrets.token_hex(4)}", utc_now()
    before = {key: status.state or MachineState() for key, status in states.items()}
    bare = [key for key, state in before.items() if not state.agent]
    answers = document.run("install", wave.instances, bare, mark=mark, **parameters)
    wave.why = {key: answer.why for key, answer in answers.items() if not answer.ok}
    installed = {key: status for key, status in states.items() if key not in wave.why}
    wave.why |= wait_for_reports(document.target, how, installed, mark, began, say)
    wave.failed = [key for key in states if key in wave.why]
    wave.ok = [key for key in states if key not in wave.why]
    # What they have now is what a later failure puts back.
    for key, answer in document.run("confirm", wave.ok).items():
        if not answer.ok:
            say(f"{key} reports, but its install marker could not be written: {answer.why}")
    for key in wave.failed:
        say(f"failed {key}: {wave.why[key]}")
        if answers[key] == NOT_ENDED:
            wave.not_put_back[key] = "the installation may still run there"
    lost = lost_machines(document.target, wave.failed)
    wave.not_put_back |= {key: f"it is {state}" for key, state in lost.items()}
    # A run that was killed may have brought the agent.
    bare += [key for key, state in before.items() if state.agent_package]
    stays = [key for key in wave.failed if key not in wave.not_put_back]
    for key, answer in document.run("put-back", stays, bare).items():
        if answer.ok:
            wave.rolled_back.append(key)
            say(f"put back {key} as it was")
        else:
            wave.not_put_back[key] = answer.why
            say(f"{key} could not be put back: {answer.why}")
    return wave


def wait_for_reports(
    target: Target,
    how: HowToInstall,
    states: Mapping[str, FleetStatus],
    mark: str,
    began: datetime,
    say: Say,
) -> dict[str, str]:
    """Wait until metrics and the test event of each instance are in CloudWatch; return what is
    missing of those that stay away."""
    settings = how.settings
    deadline, waits = time.monotonic() + how.patience, reminding(say)
    metrics = set() if settings.metrics else set(states)
    events: set[str] = set()
    lost: dict[str, str] = {}
    # A metric is of a whole minute: where one came before, only the next minute counts.
    this_minute = began.replace(second=0, microsecond=0)
    first = {
        key: this_minute + timedelta(minutes=status.last_metric is not None)
        for key, status in states.items()
    }
    while True:
        missing = {}
        for key in states:
            texts = [f"no GPU metric in {settings.namespace}"] if key not in metrics else []
            texts += [f"no test event in {settings.log_group}"] if key not in events else []
            if texts and key not in lost:
                missing[key] = " and ".join(texts)
        if not missing:
            return lost
        if time.monotonic() > deadline:
            late = f"in {how.patience:.0f} s"
            return lost | {key: f"{text} {late}" for key, text in missing.items()}
        waits("; ".join(f"{key}: {text}" for key, text in list(missing.items())[:4]))
        time.sleep(max(target.wait_seconds, 1.0))
        if settings.metrics:
            found = last_metrics(target, settings, list(missing), this_minute)
            metrics |= {key for key, newest in found.items() if newest >= first[key]}
        events |= arrived_tests(target, settings.log_group, mark, began - _AHEAD)
        states_now = lost_machines(target, list(missing))
        lost |= {key: f"is {state}" for key, state in states_now.items()}
