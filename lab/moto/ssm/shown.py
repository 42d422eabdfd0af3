"""Agents, commands and invocations as Systems Manager's calls show them."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

from lab.moto.ssm import commands
from lab.moto.ssm.agents import Agent
from lab.moto.ssm.commands import Command, Invocation, Plugin


def agent(of: Agent) -> dict[str, Any]:
    """An agent as DescribeInstanceInformation shows it."""
    return {
        **of.reported,
        "InstanceId": of.instance_id,
        "PingStatus": "Online" if of.online else "ConnectionLost",
        "LastPingDateTime": _moment(time.time() - (time.monotonic() - of.heard)),
        "IsLatestVersion": False,
        "ResourceType": "EC2Instance",
        "SourceId": of.instance_id,
        "SourceType": "AWS::EC2::Instance",
    }


def command(of: Command) -> dict[str, Any]:
    """A command as SendCommand shows it: Pending."""
    return {
        "Comment": of.request.get("Comment", ""),
        "CommandId": of.id,
        "DocumentName": of.document,
        "DocumentVersion": of.request.get("DocumentVersion", "$DEFAULT"),
        "Parameters": of.parameters,
        "RequestedDateTime": _moment(of.requested),
        "ExpiresAfter": _moment(of.requested + of.lifetime),
        "TimeoutSeconds": int(of.lifetime),
        "Status": "Pending",
        "StatusDetails": "Pending",
        "MaxConcurrency": of.request.get("MaxConcurrency", "50"),
        "MaxErrors": of.request.get("MaxErrors", "0"),
        "TargetCount": len(of.invocations),
        "Targets": of.request.get("Targets", []),
    }


def invocation(of: Command, on_instance: Invocation, *, details: bool) -> dict[str, Any]:
    """An invocation of ListCommandInvocations."""
    plugins = [_plugin(plugin) for plugin in on_instance.plugins] if details else []
    return {
        "CommandId": of.id,
        "InstanceId": on_instance.instance_id,
        "InstanceName": "",
        "Comment": of.request.get("Comment", ""),
        "DocumentName": of.document,
        "DocumentVersion": of.request.get("DocumentVersion", "$DEFAULT"),
        "RequestedDateTime": _moment(on_instance.requested),
        "Status": on_instance.status,
        "StatusDetails": on_instance.details,
        "StandardOutputUrl": "",
        "StandardErrorUrl": "",
        "CloudWatchOutputConfig": {"CloudWatchOutputEnabled": False},
        "CommandPlugins": plugins,
    }


def _plugin(plugin: Plugin) -> dict[str, Any]:
    mark = "\n----------ERROR-------\n" if plugin.err else ""
    times = {"ResponseStartDateTime": plugin.started, "ResponseFinishDateTime": plugin.ended}
    return {
        "Name": plugin.step.name,
        "Status": plugin.status,
        "StatusDetails": plugin.details,
        "ResponseCode": plugin.code,
        "OutputS3BucketName": "",
        "OutputS3KeyPrefix": "",
        "OutputS3Region": "",
        "Output": commands.cut(f"{plugin.out}{mark}{plugin.err}", commands.LONGEST_PLUGIN_OUTPUT),
        **{name: _moment(value) for name, value in times.items() if value},
    }


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
