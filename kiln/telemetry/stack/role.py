"""The role of the instances, and the parameters that hold the agent's configuration."""

from __future__ import annotations

import json
from typing import Any

from kiln.base.errors import KilnError
from kiln.telemetry.agent import EVENTS, STAGED, agent_files
from kiln.telemetry.facts import telemetry_facts
from kiln.telemetry.settings import Telemetry
from kiln.telemetry.stack.inputs import (
    Resource,
    StackInputs,
    either,
    is_given,
    parameter_name,
    reference,
    stack_facts,
    substituted,
)

PARAMETERS = {
    "PermissionsBoundary": {
        "Type": "String",
        "Default": "",
        "Description": "ARN of the policy that bounds the role; empty for none",
    },
    "BundleBucket": {
        "Type": "String",
        "Default": "",
        "Description": "bucket of fleet.install --bucket; empty for its default",
    },
}
CONDITIONS = {
    "HasBoundary": is_given("PermissionsBoundary"),
    "HasBundle": is_given("BundleBucket"),
}
OUTPUTS = {"InstanceProfile": reference("InstanceProfile"), "InstanceRole": reference("Role")}
_ARN = "arn:${AWS::Partition}"


def role_resources(inputs: StackInputs) -> dict[str, Resource]:
    """The role, its instance profile, and the policy for a bucket with bundles."""
    return {
        "Role": {
            "Type": "AWS::IAM::Role",
            "Properties": {
                "Description": "GPU instances that report to CloudWatch",
                "AssumeRolePolicyDocument": {
                    "Version": "2012-10-17",
                    "Statement": [
                        {
                            "Effect": "Allow",
                            "Principal": {"Service": "ec2.amazonaws.com"},
                            "Action": "sts:AssumeRole",
                        }
                    ],
                },
                "PermissionsBoundary": either("HasBoundary", reference("PermissionsBoundary")),
                "Policies": [
                    {"PolicyName": "kiln-telemetry", "PolicyDocument": _policy(inputs.settings)}
                ],
            },
        },
        "BundlePolicy": {
            "Type": "AWS::IAM::Policy",
            "Condition": "HasBundle",
            "Properties": {
                "PolicyName": "kiln-telemetry-bundle",
                "Roles": [reference("Role")],
                "PolicyDocument": {
                    "Version": "2012-10-17",
                    "Statement": [
                        {
                            "Sid": "Bundle",
                            "Effect": "Allow",
                            "Action": "s3:GetObject",
                            "Resource": substituted(f"{_ARN}:s3:::${{BundleBucket}}/*"),
                        }
                    ],
                },
            },
        },
        "InstanceProfile": {
            "Type": "AWS::IAM::InstanceProfile",
            "Properties": {"Roles": [reference("Role")]},
        },
    }


def log_groups(settings: Telemetry) -> tuple[str, str]:
    """The log groups of the events and of DCGM."""
    return settings.log_group, str(telemetry_facts()["dcgm"]["log_group"])


def _policy(settings: Telemetry) -> dict[str, Any]:
    here = "${AWS::Region}:${AWS::AccountId}"
    account = f"{_ARN}:logs:{here}:log-group"
    groups = [
        substituted(f"{account}:{name}{rest}")
        for name in log_groups(settings)
        for rest in ("", ":*")
    ]
    prefix = stack_facts()["parameters"]["prefix"]
    parameters = f"{_ARN}:ssm:{here}:parameter/{prefix}*"
    manager = stack_facts()["systems_manager"]
    statements: list[dict[str, Any]] = [
        {"Sid": "SystemsManager", "Action": manager["anywhere"], "Resource": "*"},
        {
            "Sid": "SystemsManagerOwn",
            "Action": manager["limited"],
            "Resource": [
                substituted(f"{_ARN}:ec2:{here}:instance/*"),
                substituted(f"{_ARN}:ssm:{here}:association/*"),
                # AWS's own documents are in no account.
                substituted(f"{_ARN}:ssm:${{AWS::Region}}:*:document/*"),
            ],
        },
        {
            "Sid": "AgentConfiguration",
            "Action": ["ssm:GetParameter", "ssm:GetParameters"],
            "Resource": substituted(parameters),
        },
        {
            "Sid": "Metrics",
            "Action": "cloudwatch:PutMetricData",
            "Resource": "*",
            "Condition": {"StringEquals": {"cloudwatch:namespace": settings.namespace}},
        },
        {
            "Sid": "Logs",
            "Action": [
                "logs:CreateLogGroup",
                "logs:CreateLogStream",
                "logs:DescribeLogStreams",
                "logs:PutLogEvents",
                "logs:PutRetentionPolicy",
            ],
            "Resource": groups,
        },
        # Where fleet.install puts its bundle if no bucket is named.
        {
            "Sid": "FleetBundle",
            "Action": "s3:GetObject",
            "Resource": substituted(
                f"{_ARN}:s3:::ami-kiln-fleet-${{AWS::AccountId}}-${{AWS::Region}}/telemetry/*"
            ),
        },
        # DescribeTags has no resources: the agent asks it for AutoScalingGroupName.
        {"Sid": "Tags", "Action": "ec2:DescribeTags", "Resource": "*"},
    ]
    return {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", **statement} for statement in statements],
    }


def configuration_resources(settings: Telemetry) -> dict[str, Resource]:
    """A parameter of Systems Manager for each profile.

    Raises KilnError (exit status 2) for a configuration that is too long for a parameter.
    """
    resources = {}
    for profile in stack_facts()["parameters"]["profiles"]:
        text = configuration(settings, profile)
        resources[configuration_key(profile)] = {
            "Type": "AWS::SSM::Parameter",
            "Properties": {
                "Name": parameter_name(profile),
                "Type": "String",
                "Tier": _tier(text, profile),
                "Description": f"CloudWatch agent, {profile}: append it to what a machine has",
                "Value": text,
            },
        }
    return resources


def configuration_key(profile: str) -> str:
    """The name of a profile's parameter in the template, and of its output."""
    return f"ConfigParameter{profile.capitalize()}"


def configuration(settings: Telemetry, profile: str) -> str:
    """The agent's configuration of a profile: the event log, and the GPU metrics.

    On an AMI Kiln image it repeats sections that are there already, which the agent accepts. EFA,
    DCGM and `host` depend on the machine and are left to the image.
    """
    chosen = settings.model_copy(update={"profile": profile})
    files = agent_files(chosen, driver="any")
    # One has the section logs, the other metrics.
    whole = json.loads(files[EVENTS]) | json.loads(files[f"{STAGED}/gpu.json"])
    return json.dumps(whole, separators=(",", ":"))


def _tier(text: str, profile: str) -> str:
    limits = stack_facts()["parameters"]
    size = len(text.encode())
    if size > limits["advanced"]:
        raise KilnError(
            f"the agent's configuration of {profile} has {size} bytes, a parameter takes "
            f"{limits['advanced']}",
            hint="shorten `aggregate_by` or `extra_metrics` of the telemetry settings",
        )
    return "Standard" if size <= limits["standard"] else "Advanced"
