"""The whole template, as text and as data. `./invoke stack.render` prints it."""

from __future__ import annotations

from typing import Any

from kiln.base.paths import ROOT
from kiln.base.yaml_files import as_yaml
from kiln.telemetry.settings import Telemetry
from kiln.telemetry.stack import alarms, dashboard, events, network, role, topic
from kiln.telemetry.stack.inputs import StackInputs, stack_facts

TEMPLATE = ROOT / "deploy" / "gpu-telemetry.yaml"
# Types of the committed template, an example: `./invoke stack.render` takes those of the rows.
_EXAMPLE_TYPES = ("g4dn.xlarge", "g6.12xlarge", "p4d.24xlarge", "p5.48xlarge", "p6-b200.48xlarge")
_NOTES = (
    "Telemetry of GPU machines for a whole account: role, agent configuration, alarms, dashboard.",
    "Made by ./invoke generate from default settings; ./invoke stack.deploy creates it with yours.",
)


def stack_template(inputs: StackInputs) -> str:
    """The template as YAML.

    Raises KilnError (exit status 2) for settings that the stack cannot be made of.
    """
    return as_yaml(_NOTES, template_data(inputs))


def example_text() -> str:
    """The content of deploy/gpu-telemetry.yaml: default settings, some instance types."""
    return stack_template(StackInputs(Telemetry(), _EXAMPLE_TYPES))


def template_data(inputs: StackInputs) -> dict[str, Any]:
    """The template as plain data."""
    settings = inputs.settings
    all_alarms = alarms.alarm_resources(inputs)
    outputs = {
        **role.OUTPUTS,
        **dashboard.OUTPUTS,
        **topic.OUTPUTS,
        **alarms.OUTPUTS,
        "EventLogGroup": role.log_groups(settings)[0],
        "DcgmLogGroup": role.log_groups(settings)[1],
        **{
            role.configuration_key(profile): {"Ref": role.configuration_key(profile)}
            for profile in stack_facts()["parameters"]["profiles"]
        },
    }
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "AMI Kiln: telemetry of GPU machines",
        "Parameters": {
            **role.PARAMETERS,
            **events.PARAMETERS,
            **topic.PARAMETERS,
            **alarms.PARAMETERS,
            **network.PARAMETERS,
        },
        "Mappings": alarms.MAPPINGS,
        "Conditions": {
            **role.CONDITIONS,
            **events.CONDITIONS,
            **topic.CONDITIONS,
            **alarms.CONDITIONS,
            **network.CONDITIONS,
        },
        "Resources": {
            **role.role_resources(inputs),
            **role.configuration_resources(settings),
            **events.event_log_resources(settings),
            **topic.topic_resources(),
            **all_alarms,
            "Dashboard": dashboard.dashboard_resource(inputs, all_alarms),
            **network.network_resources(),
        },
        "Outputs": {
            **{name: {"Value": value} for name, value in outputs.items()},
            **{
                name: {"Condition": network.INFRA, "Value": {"Ref": name}}
                for name in network.INSTANCES
            },
        },
    }
