"""Tasks of telemetry: telemetry.*, fleet.* for running instances, stack.* for an account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError, named_by, operation_failed
from kiln.cli.launch import write
from kiln.cli.options import Place, positive_number
from kiln.cli.output import log, output, table
from kiln.cli.task import Flags, task

if TYPE_CHECKING:
    from kiln.cloud.target import Target
    from kiln.fleet.machines import FleetMachine
    from kiln.telemetry import Telemetry
    from kiln.telemetry.stack import StackInputs


def _settings(profile: str, **settings: Any) -> Telemetry:
    """Return settings from flags; those that are None have their default."""
    from pydantic import ValidationError

    from kiln.telemetry import Telemetry

    given = {name: value for name, value in settings.items() if value is not None}
    try:
        return Telemetry.model_validate({"profile": profile, **given})
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise KilnError(message.removeprefix("Value error, ")) from None


@task("Telemetry", "telemetry.cost")
def cost(instance_type: str, profile: str = "compute", instances: int = 1) -> None:
    """Show a profile's CloudWatch series and monthly price.

    ./invoke telemetry.cost p4d.24xlarge --instances 10

    profile: compute, graphics or full: --profile compute
    instances: how many instances: --instances 10
    """
    from kiln import telemetry

    answer = telemetry.monthly_cost(instance_type, _settings(profile), instances=instances)
    output(answer, telemetry.cost_text(answer))


@task("Telemetry", "telemetry.bundle")
def bundle(out: str = "build/kiln-telemetry.sh", profile: str = "compute") -> None:
    """Write a script that installs telemetry on an instance.

    out: the script to write: --out kiln-telemetry.sh
    profile: compute, graphics, full or none (events only): --profile compute
    """
    from kiln.facts.packages import read_lock_file
    from kiln.telemetry import bundle as installer

    settings = _settings(profile)
    files = {entry["url"]: entry.get("sha256") for entry in read_lock_file()["artifacts"]}
    packages = installer.agent_packages({url: sha for url, sha in files.items() if sha})
    with named_by("--out"):
        digest = installer.write_bundle(Path(out), settings, packages)
    then = "run it as root on the instance; --uninstall removes everything"
    output({"file": out, "sha256": digest}, f"{out}  sha256 {digest}", then)


@dataclass(frozen=True)
class Instances(Flags):
    """Instances

    targets: which instances: --targets tag:Team=ml, --targets i-…,i-…, --targets all
    """

    targets: str

    def find(self, place: Place) -> tuple[Target, list[FleetMachine]]:
        """Return where the instances are, and which."""
        from kiln.fleet.machines import find_machines, parse_targets

        selected = parse_targets(self.targets)
        target = place.choose()
        return target, find_machines(target, selected)


@dataclass(frozen=True)
class Sinks(Flags):
    """CloudWatch

    namespace: of the GPU metrics: --namespace CWAgent
    log_group: of the events: --log-group /ec2/accelerated/accel-event-log
    """

    namespace: str | None = None
    log_group: str | None = None


@task("Telemetry", "fleet.status")
def status(instances: Instances, *, sinks: Sinks, place: Place) -> None:
    """Show which instances report GPU metrics and events.

    ./invoke fleet.status tag:Team=ml
    """
    from kiln.fleet.status import fleet_status, status_table

    settings = _settings("compute", namespace=sinks.namespace, log_group=sinks.log_group)
    target, machines = instances.find(place)
    rows = fleet_status(target, machines, settings, log)
    output([row.as_json() for row in rows], status_table(rows))


@task("Telemetry", "fleet.install")
def install(
    instances: Instances,
    profile: str = "compute",
    waves: str = "1,10%,100%",
    max_errors: str = "0",
    replace: bool = False,
    bucket: str | None = None,
    interval: int = 60,
    flush_interval: int = 60,
    patience: str = "15",
    *,
    sinks: Sinks,
    place: Place,
) -> int:
    """Install telemetry on running instances, in waves.

    ./invoke fleet.install tag:Team=ml --waves 1,10%,100% --max-errors 2

    profile: compute, graphics, full or none (events only): --profile compute
    waves: sizes of the waves, numbers or percent of all: --waves 1,10%,100%
    max_errors: so many may fail, or percent of all, before it stops: --max-errors 2
    replace: put the agent's own configuration aside; otherwise ours is appended to it
    bucket: for the installer, otherwise ami-kiln-fleet-ACCOUNT-REGION: --bucket my-bucket
    interval: seconds between two measurements: --interval 60
    flush_interval: seconds between two calls of the agent: --flush-interval 60
    patience: minutes that a wave waits for metrics and test events: --patience 15
    """
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
        namespace=sinks.namespace,
        log_group=sinks.log_group,
    )
    plan_waves([], waves)
    allowed_errors(max_errors, 1)
    minutes = positive_number(patience, "--patience")
    _require_bucket(bucket)
    target, machines = instances.find(place)
    if not machines:
        raise KilnError(f"--targets {instances.targets}: no such instance runs in {target.where}")
    how = HowToInstall(
        settings=settings,
        waves=waves,
        max_errors=max_errors,
        replace=replace,
        bucket=bucket or fleet_bucket(target),
        patience=minutes * 60,
    )
    done = install_fleet(target, machines, how, log)
    folder = write_installation(done)
    output(done.as_json(), installation_text(done))
    log(f"report: {folder}/report.html")
    return 1 if done.stopped else 0


@task("Telemetry", "fleet.uninstall")
def uninstall(
    instances: Instances, clean: bool = False, bucket: str | None = None, *, place: Place
) -> int:
    """Remove telemetry from running instances.

    clean: delete the SSM document and the installers in S3 too, unless an instance failed
    bucket: of the installers, otherwise ami-kiln-fleet-ACCOUNT-REGION: --bucket my-bucket
    """
    from kiln.fleet.document import fleet_bucket, remove_stored
    from kiln.fleet.install import uninstall_fleet

    _require_bucket(bucket)
    target, machines = instances.find(place)
    answers = uninstall_fleet(target, machines, log)
    failed = {key: answer.why for key, answer in answers.items() if not answer.ok}
    ok = [key for key in answers if key not in failed]
    gone = remove_stored(target, bucket or fleet_bucket(target)) if clean and not failed else []
    lines = [
        *(f"ok      {key}" for key in ok),
        *(f"failed  {key}  {why}" for key, why in failed.items()),
        *(f"removed {removed}" for removed in gone),
    ]
    data = {"ok": ok, "failed": failed, "removed": gone}
    output(data, "\n".join(lines) or "no instance has AMI Kiln telemetry")
    return 1 if failed else 0


def _require_bucket(bucket: str | None) -> None:
    from kiln.base import vocabulary

    if bucket is not None:
        vocabulary.BUCKET.required(bucket, "--bucket")


@dataclass(frozen=True)
class Inputs(Flags):
    """Template

    row: telemetry settings of this AMI instead of those of `defaults`: --row NAME
    gpu_type: an instance type whose GPUs are counted and priced (default: those of the rows);
      repeat it: --gpu-type p4d.24xlarge
    watch: an instance that must never be silent; repeat it: --watch i-0123456789abcdef0
    """

    gpu_type: list[str]
    watch: list[str]
    row: str | None = None

    def read(self) -> StackInputs:
        """Return the template's inputs."""
        from kiln import facts
        from kiln.base import vocabulary
        from kiln.base.errors import did_you_mean
        from kiln.matrix.load import default_telemetry, load_recipes
        from kiln.telemetry import Telemetry
        from kiln.telemetry.stack import StackInputs

        recipes, settings = load_recipes(), default_telemetry()
        if self.row is not None:
            names = [recipe.name for recipe in recipes]
            recipes = [recipe for recipe in recipes if recipe.name == self.row]
            if not recipes:
                raise KilnError(
                    f"--row {self.row}: no such AMI", hint=did_you_mean(self.row, names)
                )
            settings = Telemetry(**recipes[0].telemetry)
        for item in self.watch:
            vocabulary.INSTANCE_ID.required(item, "--watch")
        types = self.gpu_type or {
            kind
            for recipe in recipes
            for kind in (*recipe.target_instance_types, recipe.verify_instance_type)
        }
        instance_types = tuple(facts.instance(kind).type for kind in sorted(types))
        return StackInputs(settings, instance_types, tuple(dict.fromkeys(self.watch)))


@task("Telemetry", "stack.render")
def render(inputs: Inputs, out: str | None = None) -> None:
    """Print the telemetry stack's CloudFormation template.

    out: a file instead of standard output: --out gpu-telemetry.yaml
    """
    from kiln.telemetry.stack import as_data, stack_template

    text = stack_template(inputs.read())
    write(out, text, {"file": out, "template": as_data(text)})


@task("Telemetry", "stack.deploy")
def deploy(
    parameter: list[str], name: str = "", plan: bool = False, *, inputs: Inputs, place: Place
) -> None:
    """Create or update the telemetry stack of an account.

    ./invoke stack.deploy --name ml --parameter Email=team@example.com

    name: the stack's name, and that of its dashboard, GPU-NAME: --name ml
    parameter: of the template; one that is not given keeps its value; repeat it: --parameter
      Email=team@example.com
    plan: show what an update would change, and change nothing
    """
    from kiln.cloud import stacks
    from kiln.matrix.load import default_account
    from kiln.telemetry import stack

    _require_name(name)
    read = inputs.read()
    text = stack.stack_template(read)
    data = stack.as_data(text)
    for line in stack.alarms_without_data(read.settings):
        log(line)
    parameters = stack.parameters_given(parameter, data["Parameters"])
    account = default_account()
    if account.permissions_boundary:
        parameters.setdefault("PermissionsBoundary", account.permissions_boundary)
    target = place.choose_aws("stack.deploy")
    log(target)
    if not stacks.find_stack(target, name):
        for key, found in stack.LOG_GROUPS.items():
            group = data["Outputs"][found]["Value"]
            if key not in parameters and stacks.has_log_group(target, group):
                log(f"{key}=false: the log group is there already, and stays as it is")
                parameters[key] = "false"
    outputs = stacks.deploy_stack(target, name, text, parameters, log, tags=account.tags, plan=plan)
    output(outputs, table((), list(outputs.items())))


@task("Telemetry", "stack.status")
def stack_status(name: str = "", *, place: Place) -> None:
    """Show the telemetry stack's state, outputs and alarms.

    name: the stack's name: --name ml
    """
    from kiln.cloud import stacks

    _require_name(name)
    target = place.choose_aws("stack.status")
    stack = stacks.find_stack(target, name)
    if stack is None:
        raise operation_failed(
            f"there is no stack {name} in {target.region}",
            hint=f"./invoke stack.deploy --name {name}",
        )
    state = {
        "stack": name,
        "status": stack["StackStatus"],
        "outputs": stacks.stack_outputs(stack),
        "alarms": stacks.stack_alarms(target, name),
    }
    alarms = [(alarm["state"], alarm["name"], _subjects(alarm)) for alarm in state["alarms"]]
    title = f"{state['stack']}: {state['status']}"
    output(state, title, table((), list(state["outputs"].items())), table((), alarms))


def _subjects(alarm: Mapping[str, Any]) -> str:
    """Return the instances that an alarm is about."""
    about = [
        ", ".join(f"{key} {value}" for key, value in each.items())
        for each in alarm.get("about", [])
    ]
    return f"({'; '.join(about)})" if about else ""


@task("Telemetry", "stack.delete")
def delete(name: str = "", with_logs: bool = False, *, place: Place) -> None:
    """Delete the telemetry stack; its log groups stay.

    name: the stack's name: --name ml
    with_logs: also delete the log groups, with all events that machines have sent
    """
    from kiln.cloud import stacks
    from kiln.telemetry.stack import LOG_GROUPS

    _require_name(name)
    target = place.choose_aws("stack.delete")
    outputs = stacks.stack_outputs(stacks.find_stack(target, name))
    gone = stacks.remove_stack(target, name, log)
    groups = [outputs[key] for key in LOG_GROUPS.values() if with_logs and key in outputs]
    removed = [group for group in groups if stacks.has_log_group(target, group)]
    for group in removed:
        stacks.remove_log_group(target, group)
    text = f"{name} is gone" if gone else f"there is no stack {name}"
    output({"stack": name, "deleted": gone, "log_groups_deleted": removed}, text)


def _require_name(name: str) -> None:
    from kiln.base import vocabulary

    if not name:
        raise KilnError("specify the stack's --name, for example --name ml")
    vocabulary.STACK.required(name, "--name")
