"""What the stack is rendered from, and the words of CloudFormation that all its parts use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kiln.facts import table
from kiln.telemetry.settings import Telemetry

Resource = dict[str, Any]
# Systems Manager reads the names of its parameters' types in this form.
FACTS = "telemetry-stack"


@dataclass(frozen=True)
class StackInputs:
    """The settings of the images, and the machines that alarms and prices are about.

    `gpu_types` are the instance types whose GPUs are counted and priced, `watched` the ids of
    instances that must never be silent.
    """

    settings: Telemetry
    gpu_types: tuple[str, ...] = ()
    watched: tuple[str, ...] = ()


def stack_facts() -> dict[str, Any]:
    """`kiln/facts/knowledge/telemetry-stack.yaml`."""
    return table(FACTS)


def reference(name: str) -> dict[str, str]:
    """CloudFormation's Ref."""
    return {"Ref": name}


def attribute(resource: str, name: str) -> dict[str, list[str]]:
    """CloudFormation's Fn::GetAtt."""
    return {"Fn::GetAtt": [resource, name]}


def substituted(text: str) -> dict[str, str]:
    """CloudFormation's Fn::Sub."""
    return {"Fn::Sub": text}


def either(condition: str, value: Any, other: Any = None) -> dict[str, list[Any]]:
    """CloudFormation's Fn::If; without `other`, nothing."""
    return {"Fn::If": [condition, value, reference("AWS::NoValue") if other is None else other]}


def is_true(parameter: str) -> dict[str, list[Any]]:
    """A condition: the parameter is the text true."""
    return {"Fn::Equals": [reference(parameter), "true"]}


def is_given(parameter: str) -> dict[str, list[Any]]:
    """A condition: the parameter is not empty."""
    return {"Fn::Not": [{"Fn::Equals": [reference(parameter), ""]}]}


def parameter_name(profile: str) -> str:
    """The parameter of Systems Manager with a profile's agent configuration."""
    return f"{stack_facts()['parameters']['prefix']}{profile}"
