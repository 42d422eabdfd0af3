"""`verify --instance` and `--host`: the checks of a machine that runs already, as it says it is.

Nothing is launched, changed or tagged; checks that act on the machine run only with `exercise`.
What the machine should be comes from its own /etc/kiln/recipe.json, and its instance type from EC2
or from its instance metadata.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kiln import facts
from kiln.base import needs, vocabulary
from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import build_dir, short_path
from kiln.base.processes import Stop, StoppedError, on_signals
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.base.tags import DISTRO
from kiln.base.vocabulary import now
from kiln.cloud import aws, runs
from kiln.cloud.images import require_image
from kiln.cloud.instance import Machine
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.pipeline import checks, report
from kiln.pipeline.record import Record, Status, write_record
from kiln.pipeline.records import RUNNING_MACHINES
from kiln.pipeline.verify import recipe_on

_HOST = re.compile(r"(?P<user>[a-z_][a-z0-9_-]*)@(?P<address>[A-Za-z0-9][A-Za-z0-9.:-]*)")
_ASK_TYPE = (
    "t=$(curl -sf -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "
    'http://169.254.169.254/latest/api/token) && curl -sf -m 5 -H "X-aws-ec2-metadata-token: $t" '
    "http://169.254.169.254/latest/meta-data/instance-type"
)
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class Running:
    """A machine that runs: where ssh finds it, and what EC2 says of it."""

    name: str
    user: str
    address: str
    instance_type: str = ""
    ami_id: str | None = None


def at_host(host: str) -> Running:
    """The machine of `user@address`."""
    match = _HOST.fullmatch(host)
    if match is None:
        raise KilnError(f"--host {vocabulary.shown(host)} is not user@address")
    return Running(host, match["user"], match["address"])


def at_instance(instance_id: str, target: Target) -> Running:
    """The machine of an instance id, as EC2 describes it."""
    vocabulary.INSTANCE_ID.required(instance_id, "--instance")
    with aws.explained(f"{instance_id} could not be looked up in {target.region}"):
        answer = aws.ec2(target).describe_instances(InstanceIds=[instance_id])
    instance = answer["Reservations"][0]["Instances"][0]
    state = instance["State"]["Name"]
    if state != "running":
        raise operation_failed(f"{instance_id} is {state}: only a running instance can be checked")
    ami_id = str(instance["ImageId"])
    distro = require_image(target, ami_id).tags.get(DISTRO)
    if not distro:
        raise KilnError(
            f"{instance_id} runs {ami_id}, which has no tag {DISTRO}: its user name is not known",
            hint="name it: --host user@address",
        )
    return Running(
        instance_id,
        str(facts.distro(distro)["ssh_user"]),
        str(instance.get("PublicIpAddress") or instance["PrivateIpAddress"]),
        str(instance["InstanceType"]),
        ami_id,
    )


def verify_running(
    running: Running,
    target: Target,
    progress: Progress,
    *,
    kind_of_machine: Callable[[Machine], str],
    key: str | None,
    keyword: str | None,
    exercise: bool,
    install: bool,
) -> Record:
    """Run the checks on a machine; its record and report are kept as those of `verify --ami`.

    `kind_of_machine` says in what kind of target a machine runs: `target` is only where EC2 was
    asked. `key` is the file of a private key; without it ssh uses what it is configured to use.
    `keyword` is pytest's -k: such a run has looked at a part only, and verifies nothing.
    """
    if key and not Path(key).is_file():
        raise KilnError(f"--key {key}: no such file")
    checks.require_match(keyword)
    needs.ensure("ssh", install=install, say=progress.say)
    run_id = runs.new_id()
    started, stop = now(), Stop()
    folder = build_dir() / RUNNING_MACHINES / run_id
    with (
        _interruptible(stop, running, exercise=exercise),
        connected(running, run_id, folder, key) as machine,
    ):
        _require_ssh(machine, running)
        recipe = recipe_on(machine, running.name)
        # Not among the row's runs: what became of one machine says nothing about the row.
        run = Run(run_id, recipe.name, folder)
        run.folder.mkdir(parents=True)
        kind = running.instance_type or _instance_type(machine)
        _say_what_it_is(recipe, kind, running, progress)
        if not exercise:
            progress.say("checks that act on it (a test Xid, NCCL) run only with --exercise")
        where = kind_of_machine(machine)
        with progress.stage("checks") as stage:
            expected = checks.expectations(recipe, kind, where, exercise=exercise)
            done = checks.run_checks(
                machine, expected, run.folder, stop=stop, on_line=stage.line, keyword=keyword
            )
            stage.note = str(done)
        versions = machine.read_json("/etc/kiln/version-info.json")
    whole: Status = "verified" if keyword is None else "unverified"
    record = Record(
        run_id=run_id,
        kind="verify",
        status=whole if done.succeeded else "failed",
        recipe=recipe,
        recipe_from=f"/etc/kiln/recipe.json on {running.name}",
        target=where,
        image_note=f"the running machine {running.name}",
        region=target.region,
        ami_id=running.ami_id,
        verify_instance_type=None if kind == _UNKNOWN else kind,
        git_commit=runs.git_commit(),
        started=started,
        finished=now(),
        folder=str(run.folder),
        seconds=dict(progress.seconds),
        checks=done,
        versions=versions,
    )
    write_record(run, record)
    report.write_report(run.folder / "report.html", record)
    return record


@contextmanager
def connected(running: Running, run_id: str, folder: Path, key: str | None) -> Iterator[Machine]:
    """A machine over one shared connection, with the user's own settings of ssh below ours."""
    with short_path(run_id, folder) as short:
        identity = f"  IdentityFile {short}/key\n  IdentitiesOnly yes\n" if key else ""
        if key:
            (short / "key").symlink_to(Path(key).absolute())
        config = short / "config"
        config.write_text(
            "Host *\n"
            f"  ControlMaster auto\n  ControlPath {short}/ssh\n  ControlPersist 60\n"
            "  BatchMode yes\n  ConnectTimeout 10\n"
            f"  UserKnownHostsFile {short}/known_hosts ~/.ssh/known_hosts\n"
            f"{identity}Include ~/.ssh/config\n"
            # Unless the user's settings say otherwise (the first value counts), a key that is new
            # is kept for this run; one that differs from the known one is refused.
            "Host *\n  StrictHostKeyChecking accept-new\n"
        )
        machine = Machine(
            running.name, running.address, running.user, config, run_id, short / "run"
        )
        try:
            yield machine
        finally:
            machine.ssh("-O", "exit")


@contextmanager
def _interruptible(stop: Stop, running: Running, *, exercise: bool) -> Iterator[None]:
    """Ctrl-C ends the checks, and is a message: there is nothing to remove."""
    words = "stopping the checks"
    with on_signals(stop, words, words):
        try:
            yield
        except StoppedError:
            hint = "it runs on"
            if exercise:
                hint += "; a check that had begun may have left a test Xid in its log"
            raise operation_failed(f"{running.name}: interrupted", hint=hint) from None


def _require_ssh(machine: Machine, running: Running) -> None:
    code, _, error = machine.ssh("true")
    if code != 0:
        lines = error.strip().splitlines() or ["ssh failed"]
        raise operation_failed(
            f"{running.user}@{running.address} cannot be reached over SSH: {lines[-1]}",
            hint="try it by hand; --key FILE names a private key",
        )


def _instance_type(machine: Machine) -> str:
    """What the machine's instance metadata says; `unknown` without an answer."""
    _, text, _ = machine.ssh(_ASK_TYPE)
    return text.strip() if vocabulary.INSTANCE_TYPE.fits(text.strip()) else _UNKNOWN


def _say_what_it_is(recipe: Recipe, kind: str, running: Running, progress: Progress) -> None:
    progress.say(f"{running.name} says it is {recipe.name}, on {kind}")
    if kind == _UNKNOWN:
        progress.say("its instance type is not known: checks of its GPUs are skipped")
        return
    usual = recipe.verify_instance_type
    if kind not in [usual, *recipe.target_instance_types]:
        progress.say(f"the recipe is verified on {usual}; what is checked here is that of {kind}")
