"""Documents as text: their titles, CloudFormation templates, JSON."""

from __future__ import annotations

import json
from typing import Any

from kiln.base.yaml_files import as_yaml
from kiln.consume.launch_request import LaunchRequest


def title(wanted: LaunchRequest, what: str) -> str:
    """The first comment of a document."""
    held = f"channel {wanted.channel}" + (f" ({wanted.image_id})" if wanted.image_id else "")
    return f"{what}: {wanted.line}, {held}, on {wanted.instance_type.type}"


def stack(
    wanted: LaunchRequest,
    what: str,
    *,
    parameters: dict[str, Any],
    resources: dict[str, Any],
    outputs: dict[str, Any],
    conditions: dict[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> str:
    """A CloudFormation template as YAML. Each output is one value; `notes` are comments on top."""
    template: dict[str, Any] = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": title(wanted, what),
        "Parameters": parameters,
        **({"Conditions": conditions} if conditions else {}),
        "Resources": resources,
        "Outputs": {name: {"Value": value} for name, value in outputs.items()},
    }
    needed = [name for name, parameter in parameters.items() if "Default" not in parameter]
    apply = [f"aws cloudformation deploy --stack-name {wanted.name} --template-file THIS-FILE"]
    if needed:
        apply[0] += " \\"
        apply.append(f"  --parameter-overrides {' '.join(f'{name}=…' for name in needed)}")
    return as_yaml([*apply, *notes], template)


def ref(name: str) -> dict[str, str]:
    """CloudFormation's Ref."""
    return {"Ref": name}


def text_parameter(what: str, default: str | None = None) -> dict[str, Any]:
    """A template's parameter of type String."""
    parameter: dict[str, Any] = {"Type": "String", "Description": what}
    return parameter if default is None else parameter | {"Default": default}


def as_json(data: Any) -> str:
    """Indented JSON."""
    return json.dumps(data, indent=2) + "\n"
