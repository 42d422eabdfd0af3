"""Tasks of telemetry: telemetry.*, fleet.* for running instances, stack.* for an account."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from kiln.base import vocabulary
from kiln.base.errors import KilnError, first_mistake, named_by, operation_failed
from kiln.cli.launch import write
from kiln.cli.options import ModelFlags, Place, positive_number
from kiln.cli.output import log, output, table
from kiln.cli.task import Flags, task
from kiln.telemetry.settings import Telemetry

if TYPE_CHECKING:
    from kiln.cloud.target import Target
    from kiln.fleet.machines import FleetMachine
    from kiln.telemetry.stack import StackInputs


class Settings(ModelFlags):
    """Typed flags in the place of `telemetry` settings of amis.yaml."""

    title, model = "Telemetry settings", Telemetry

    def read(self) -> Telemetry:
        """Return all settings; those that were not typed have their default."""
        try:
            return Telemetry.model_validate(self)
        except ValidationError as error:
            raise KilnError(first_mistake(error)) from None


class Profile(Settings, names=("profile",)):
    """The measurements."""


class Sinks(Settings, names=("namespace", "log_group")):
    """The places of metrics and events."""


class Agent(Settings, names=("profile", "interval", "flush_interval", "namespace", "log_group")):
    """The settings of an installation."""


@task("Telemetry", "telemetry.cost")
def cost(instance_type: str, instances: int = 1, *, settings: Profile) -> None:
    """Show a profile's CloudWatch series and monthly price.

    ./invoke telemetry.cost p4d.24xlarge --instances 10

    instances: how many instances: --instances 10
    """
    from kiln.telemetry.settings import cost_text, monthly_cost

    answer = monthly_cost(instance_type, settings.read(), instances=instances)
    output(answer, cost_text(answer))


@task("Telemetry", "telemetry.bundle")
def bundle(out: str = "build/kiln-telemetry.sh", *, settings: Profile) -> None:
    """Write a script that installs telemetry on an instance.

    out: the script to write: --out kiln-telemetry.sh
    """
    from kiln.facts.packages import read_lock_file
    from kiln.telemetry import bundle as installer

    telemetry = settings.read()
    hashed = [entry for entry in read_lock_file()["artifacts"] if entry.get("sha256")]
    packages = installer.agent_packages({entry["url"]: entry["sha256"] for entry in hashed})
    with named_by("--out"):
        digest = installer.write_bundle(Path(out), telemetry, packages)
    then = "run it as root on the instance; --uninstall removes everything"
    output({"file": out, "sha256": digest}, f"{out}  sha256 {digest}", then)


@dataclass(frozen=True)
class Instances(Flags):
    """Instances

    targets: which instances: --targets tag:Team=ml, --targets i-…,i-…, --targets all
    """

    targets: str

    def find(self, place: Place, bucket: str | None = None) -> tuple[Target, list[FleetMachine]]:
        """Return where the instances are, and which; `bucket` is to be one of S3."""
        from kiln.fleet.machines import find_machines, parse_targets

        vocabulary.BUCKET.optional(bucket, "--bucket")
        selected = parse_targets(self.targets)
        target = place.choose()
        return target, find_machines(target, selected)


@task("Telemetry", "fleet.status")
def status(instances: Instances, *, settings: Sinks, place: Place) -> None:
    """Show which instances report GPU metrics and events.

    ./invoke fleet.status tag:Team=ml
    """
    from kiln.fleet.status import STATUS_COLUMNS, fleet_status, status_cells

    telemetry = settings.read()
    target, machines = instances.find(place)
    rows = fleet_status(target, machines, telemetry, log)
    missing = [f"{row.machine.instance_id}: {lack}" for row in rows for lack in row.lacks]
    text = (
        table(STATUS_COLUMNS, [status_cells(row) for row in rows]),
        *missing,
        f"{sum(row.reports for row in rows)} of {len(rows)} instances report",
    )
    output([row.to_dict() for row in rows], *(text if rows else ["no running instance"]))


@task("Telemetry", "fleet.install")
def install(
    instances: Instances,
    waves: str = "1,10%,100%",
    max_errors: str = "0",
    replace: bool = False,
    bucket: str | None = None,
    timeout: str = "15",
    *,
    settings: Agent,
    place: Place,
) -> int:
    """Install telemetry on running instances, in waves.

    ./invoke fleet.install tag:Team=ml --waves 1,10%,100% --max-errors 2

    waves: sizes of the waves, numbers or percent of all: --waves 1,10%,100%
    max_errors: instances that may fail, number or percent, before the rollout stops: --max-errors 2
    replace: replace the agent's configuration instead of appending to it
    bucket: S3 bucket for the installer (default: ami-kiln-fleet-ACCOUNT-REGION): --bucket my-bucket
    timeout: minutes that a wave waits for metrics and test events: --timeout 15
    """
    from kiln.fleet import install as installing
    from kiln.fleet.document import fleet_bucket

    telemetry = settings.read()
    installing.plan_waves([], waves)
    installing.allowed_errors(max_errors, 1)
    seconds = positive_number(timeout, "--timeout") * 60
    target, machines = instances.find(place, bucket)
    if not machines:
        raise KilnError(f"--targets {instances.targets}: no such instance runs in {target.where}")
    stored = bucket or fleet_bucket(target)
    how = installing.HowToInstall(telemetry, waves, max_errors, replace, stored, seconds)
    done = installing.install_fleet(target, machines, how, log)
    output(done, str(done))
    return 1 if done.stopped else 0


@task("Telemetry", "fleet.uninstall")
def uninstall(
    instances: Instances, clean: bool = False, bucket: str | None = None, *, place: Place
) -> int:
    """Remove telemetry from running instances.

    clean: delete the SSM document and the installers in S3 too, unless an instance failed
    bucket: S3 bucket of the installers (default: ami-kiln-fleet-ACCOUNT-REGION): --bucket my-bucket
    """
    from kiln.fleet.document import fleet_bucket, remove_stored
    from kiln.fleet.install import uninstall_fleet

    target, machines = instances.find(place, bucket)
    answers = uninstall_fleet(target, machines, log)
    failed = {key: answer.why for key, answer in answers.items() if not answer.ok}
    ok = [key for key in answers if key not in failed]
    gone = remove_stored(target, bucket or fleet_bucket(target)) if clean and not failed else []
    rows = [("ok", key, "") for key in ok] + [("failed", *each) for each in failed.items()]
    rows += [("removed", str(each), "") for each in gone]
    last = [] if rows else ["no instance has AMI Kiln telemetry"]
    output({"ok": ok, "failed": failed, "removed": gone}, table((), rows), *last)
    return 1 if failed else 0


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
        from kiln.matrix import flags, load
        from kiln.telemetry.stack import StackInputs

        recipes, settings = load.load_recipes(), load.default_telemetry()
        if self.row is not None:
            recipes = flags.select(recipes, name=self.row)
            settings = Telemetry(**recipes[0].telemetry)
        for item in self.watch:
            vocabulary.INSTANCE_ID.required(item, "--watch")
        types = set(self.gpu_type)
        for recipe in () if types else recipes:
            types |= {*recipe.target_instance_types, recipe.verify_instance_type}
        instance_types = tuple(facts.instance(kind).type for kind in sorted(types))
        return StackInputs(settings, instance_types, tuple(dict.fromkeys(self.watch)))


@task("Telemetry", "stack.render")
def render(inputs: Inputs, out: str | None = None) -> None:
    """Print the telemetry stack's CloudFormation template.

    out: a file instead of standard output: --out gpu-telemetry.yaml
    """
    from kiln.base.yaml_files import parse_template
    from kiln.telemetry.stack import stack_template

    text = stack_template(inputs.read())
    write(out, text, {"file": out, "template": parse_template(text)})


@task("Telemetry", "stack.deploy")
def deploy(
    name: str, parameter: list[str], plan: bool = False, *, inputs: Inputs, place: Place
) -> None:
    """Create or update the telemetry stack of an account.

    ./invoke stack.deploy --name ml --parameter Email=team@example.com

    name: the stack's name, and that of its dashboard, GPU-NAME: --name ml
    parameter: template parameter; others keep their value; repeatable: --parameter
      Email=team@example.com
    plan: show what an update would change, and change nothing
    """
    from kiln.base.yaml_files import parse_template
    from kiln.cloud import stacks
    from kiln.matrix.flags import setting
    from kiln.matrix.load import default_account
    from kiln.telemetry import stack

    vocabulary.STACK.required(name, "--name")
    read = inputs.read()
    text = stack.stack_template(read)
    data = parse_template(text)
    for line in stack.alarms_without_data(read.settings):
        log(line)
    parameters = stack.parameters_given(parameter, data["Parameters"])
    account = default_account()
    if boundary := setting("permissions_boundary", account, {}):
        parameters.setdefault("PermissionsBoundary", boundary)
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
def stack_status(name: str, *, place: Place) -> None:
    """Show the telemetry stack's state, outputs and alarms.

    name: the stack's name: --name ml
    """
    from kiln.cloud import stacks

    vocabulary.STACK.required(name, "--name")
    target = place.choose_aws("stack.status")
    stack = stacks.find_stack(target, name)
    if stack is None:
        raise operation_failed(
            f"there is no stack {name} in {target.region}",
            hint=f"./invoke stack.deploy --name {name}",
        )
    alarms = stacks.stack_alarms(target, name)
    state = {
        "stack": name,
        "status": stack["StackStatus"],
        "outputs": stacks.stack_outputs(stack),
        "alarms": alarms,
    }
    rows = []
    for alarm in alarms:
        about = [", ".join(map(" ".join, each.items())) for each in alarm.get("about", [])]
        rows.append((alarm["state"], alarm["name"], "; ".join(about)))
    outputs = table((), list(state["outputs"].items()))
    output(state, f"{name}: {state['status']}", outputs, table((), rows))


@task("Telemetry", "stack.delete")
def delete(name: str, with_logs: bool = False, *, place: Place) -> None:
    """Delete the telemetry stack; its log groups stay.

    name: the stack's name: --name ml
    with_logs: also delete the log groups, with all events that machines have sent
    """
    from kiln.cloud import stacks
    from kiln.telemetry.stack import LOG_GROUPS

    vocabulary.STACK.required(name, "--name")
    target = place.choose_aws("stack.delete")
    outputs = stacks.stack_outputs(stacks.find_stack(target, name))
    gone = stacks.remove_stack(target, name, log)
    groups = [outputs[key] for key in LOG_GROUPS.values() if with_logs and key in outputs]
    removed = [group for group in groups if stacks.has_log_group(target, group)]
    for group in removed:
        stacks.remove_log_group(target, group)
    text = f"{name} is gone" if gone else f"there is no stack {name}"
    output({"stack": name, "deleted": gone, "log_groups_deleted": removed}, text)
