"""Tasks of the stack around GPU machines: render, deploy, status, delete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke import Context

from kiln.base.errors import KilnError, named_by
from kiln.cli.flags import JSON, PLACE
from kiln.cli.front import note, show, task, tell

if TYPE_CHECKING:
    from kiln.telemetry.stack import StackInputs

_NAME = {"name": "the stack's name, and that of its dashboard, GPU-NAME: --name ml"}
_INPUTS = {
    "row": "telemetry settings of this AMI instead of those of `defaults`: --row NAME",
    "gpu-type": "an instance type whose GPUs are counted and priced (default: those of the rows); "
    "repeat it: --gpu-type p4d.24xlarge",
    "watch": "an instance that must never be silent; repeat it: --watch i-0123456789abcdef0",
}


@task(
    iterable=["gpu_type", "watch"],
    positional=[],
    help={
        **_INPUTS,
        "out": "a file instead of standard output: --out gpu-telemetry.yaml",
        **JSON,
    },
)
def render(
    c: Context,
    gpu_type: list[str],
    watch: list[str],
    row: str | None = None,
    out: str | None = None,
    json: bool = False,
) -> None:
    """Print the CloudFormation template of telemetry for an account, from the images' settings."""
    from kiln.telemetry.stack import as_data, stack_template

    text = stack_template(_inputs(row, gpu_type, watch))
    answer = {"file": out, "template": as_data(text)}
    if out is None:
        show(answer, as_json=json, text=lambda _: text.removesuffix("\n"))
        return
    with named_by("--out"):
        Path(out).write_text(text, encoding="utf-8")
    tell(answer, as_json=json, text=f"wrote {out}")


@task(
    iterable=["gpu_type", "watch", "parameter"],
    positional=[],
    help={
        **_NAME,
        **_INPUTS,
        "parameter": "of the template; one that is not given keeps its value; repeat it: "
        "--parameter Email=team@example.com",
        "plan": "show what an update would change, and change nothing",
        **PLACE,
        **JSON,
    },
)
def deploy(
    c: Context,
    gpu_type: list[str],
    watch: list[str],
    parameter: list[str],
    name: str = "",
    row: str | None = None,
    plan: bool = False,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> None:
    """Create or update the stack: role, agent configuration, alarms, dashboard."""
    from kiln.cli import targets
    from kiln.cloud import stacks
    from kiln.matrix.load import default_account
    from kiln.telemetry.stack import (
        LOG_GROUPS,
        alarms_without_data,
        as_data,
        parameters_given,
        stack_template,
    )

    _named(name, "deploy")
    inputs = _inputs(row, gpu_type, watch)
    text = stack_template(inputs)
    data = as_data(text)
    for line in alarms_without_data(inputs.settings):
        note(line)
    parameters = parameters_given(parameter, data["Parameters"])
    account = default_account()
    if account.permissions_boundary:
        parameters.setdefault("PermissionsBoundary", account.permissions_boundary)
    place = targets.choose_aws(target, region, "stack.deploy")
    note(str(place))
    if not stacks.find_stack(place, name):
        for key, output in LOG_GROUPS.items():
            group = data["Outputs"][output]["Value"]
            if key not in parameters and stacks.has_log_group(place, group):
                note(f"{key}=false: the log group is there already, and stays as it is")
                parameters[key] = "false"
    outputs = stacks.deploy_stack(place, name, text, parameters, note, tags=account.tags, plan=plan)
    show(outputs, as_json=json, text=_lines)


@task(help={**_NAME, **PLACE, **JSON})
def status(
    c: Context,
    name: str = "",
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> None:
    """The stack's state and outputs, and its alarms with the instances that they are about."""
    from kiln.base.errors import operation_failed
    from kiln.cli import targets
    from kiln.cloud import stacks

    _named(name, "status")
    place = targets.choose_aws(target, region, "stack.status")
    stack = stacks.find_stack(place, name)
    if stack is None:
        raise operation_failed(
            f"there is no stack {name} in {place.region}",
            hint=f"./invoke stack.deploy --name {name}",
        )
    state = {
        "stack": name,
        "status": stack["StackStatus"],
        "outputs": stacks.stack_outputs(stack),
        "alarms": stacks.stack_alarms(place, name),
    }
    show(state, as_json=json, text=_state)


@task(
    help={
        **_NAME,
        "with-logs": "also delete the log groups, with all events that machines have sent",
        **PLACE,
        **JSON,
    }
)
def delete(
    c: Context,
    name: str = "",
    with_logs: bool = False,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> None:
    """Delete the stack. The log groups stay, unless --with-logs."""
    from kiln.cli import targets
    from kiln.cloud import stacks
    from kiln.telemetry.stack import LOG_GROUPS

    _named(name, "delete")
    place = targets.choose_aws(target, region, "stack.delete")
    outputs = stacks.stack_outputs(stacks.find_stack(place, name))
    gone = stacks.remove_stack(place, name, note)
    groups = [outputs[key] for key in LOG_GROUPS.values() if with_logs and key in outputs]
    removed = [group for group in groups if stacks.has_log_group(place, group)]
    for group in removed:
        stacks.remove_log_group(place, group)
    show(
        {"stack": name, "deleted": gone, "log_groups_deleted": removed},
        as_json=json,
        text=lambda data: f"{name} is gone" if gone else f"there is no stack {name}",
    )


def _named(name: str, task_name: str) -> None:
    from kiln.base import vocabulary

    if not name:
        raise KilnError("--name is missing", hint=f"./invoke stack.{task_name} --name ml")
    vocabulary.STACK.required(name, "--name")


def _inputs(row: str | None, gpu_types: Sequence[str], watch: Sequence[str]) -> StackInputs:
    """Raises KilnError (exit status 2) for an unknown row, instance type or instance id."""
    from kiln import facts
    from kiln.base import vocabulary
    from kiln.base.errors import did_you_mean
    from kiln.matrix.load import default_telemetry, load_recipes
    from kiln.telemetry import Telemetry
    from kiln.telemetry.stack import StackInputs

    recipes = load_recipes()
    settings = default_telemetry()
    if row is not None:
        of_row = [recipe for recipe in recipes if recipe.name == row]
        if not of_row:
            names = [recipe.name for recipe in recipes]
            raise KilnError(f"--row {row}: no such AMI", hint=did_you_mean(row, names))
        recipes, settings = of_row, Telemetry(**of_row[0].telemetry)
    for item in watch:
        vocabulary.INSTANCE_ID.required(item, "--watch")
    types = gpu_types or {
        kind
        for recipe in recipes
        for kind in (*recipe.target_instance_types, recipe.verify_instance_type)
    }
    instance_types = [facts.instance(kind).type for kind in sorted(types)]
    return StackInputs(settings, tuple(instance_types), tuple(dict.fromkeys(watch)))


def _lines(outputs: dict[str, str]) -> str:
    width = max(map(len, outputs), default=0)
    return "\n".join(f"{name:{width}}  {value}" for name, value in outputs.items())


def _state(state: dict[str, Any]) -> str:
    lines = [f"{state['stack']}: {state['status']}", _lines(state["outputs"])]
    for alarm in state["alarms"]:
        about = "; ".join(
            ", ".join(f"{key} {value}" for key, value in about.items())
            for about in alarm.get("about", [])
        )
        lines.append(f"{alarm['state']:18}{alarm['name']}" + (f"  ({about})" if about else ""))
    return "\n".join(lines)
