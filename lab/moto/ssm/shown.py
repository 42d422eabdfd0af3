"""Commands and invocations as Systems Manager's calls show them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from lab.moto.ssm import commands
from lab.moto.ssm.commands import Command, Invocation, Plugin
from lab.moto.ssm.errors import SsmError

_ASKED = ("Comment", "InstanceIds", "Targets")


def command(of: Command) -> dict[str, Any]:
    """A command of SendCommand and ListCommands."""
    status, details = of.status()
    states = [invocation.status for invocation in of.invocations]
    late = sum(invocation.details == "DeliveryTimedOut" for invocation in of.invocations)
    return {
        **{name: of.request[name] for name in _ASKED if name in of.request},
        "CommandId": of.id,
        "DocumentName": of.document,
        "DocumentVersion": of.request.get("DocumentVersion", "$DEFAULT"),
        "Parameters": of.parameters,
        "RequestedDateTime": of.requested,
        "ExpiresAfter": of.requested + of.lifetime,
        "TimeoutSeconds": int(of.lifetime),
        "Status": status,
        "StatusDetails": details,
        "MaxConcurrency": of.request.get("MaxConcurrency", "50"),
        "MaxErrors": of.request.get("MaxErrors", "0"),
        "TargetCount": len(states),
        "CompletedCount": sum(state in commands.FINAL for state in states),
        "ErrorCount": of.failed() - late,
        "DeliveryTimedOutCount": late,
        "InstanceIds": of.request.get("InstanceIds", []),
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
        "RequestedDateTime": on_instance.requested,
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
        **{name: value for name, value in times.items() if value},
    }


def result(of: Command, on_instance: Invocation, plugin_name: str | None) -> dict[str, Any]:
    """The answer of GetCommandInvocation: of the named step, or of the only one."""
    names = [plugin.step.name for plugin in on_instance.plugins]
    if plugin_name is not None and plugin_name not in names:
        raise SsmError("InvalidPluginName", f"The command has no step {plugin_name}")
    single = plugin_name is not None or len(on_instance.plugins) == 1
    shown = {
        "CommandId": of.id,
        "InstanceId": on_instance.instance_id,
        "Comment": of.request.get("Comment", ""),
        "DocumentName": of.document,
        "DocumentVersion": of.request.get("DocumentVersion", "$DEFAULT"),
        "Status": on_instance.status,
        "StatusDetails": on_instance.details,
        "StandardOutputUrl": "",
        "StandardErrorUrl": "",
        "CloudWatchOutputConfig": {"CloudWatchOutputEnabled": False},
    }
    if not single:
        codes = [plugin.code for plugin in on_instance.plugins if plugin.status != "Success"]
        return shown | {"ResponseCode": codes[0] if codes else 0, "PluginName": ""}
    plugin = on_instance.plugins[names.index(plugin_name) if plugin_name is not None else 0]
    took = plugin.ended - plugin.started
    return shown | {
        "PluginName": plugin.step.name,
        "ResponseCode": plugin.code,
        "Status": plugin.status,
        "StatusDetails": plugin.details,
        "ExecutionStartDateTime": _iso(plugin.started),
        "ExecutionEndDateTime": _iso(plugin.ended),
        "ExecutionElapsedTime": commands.elapsed(took) if plugin.ended else "",
        "StandardOutputContent": commands.cut(plugin.out, commands.LONGEST_OUTPUT),
        "StandardErrorContent": commands.cut(plugin.err, commands.LONGEST_OUTPUT),
    }


def _iso(seconds: float) -> str:
    if not seconds:
        return ""
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
