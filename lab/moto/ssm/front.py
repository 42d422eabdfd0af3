"""Systems Manager's calls that the lab answers itself, in front of moto.

Users' calls are AmazonSSM's; the agents' are those of the message delivery service too (see
`https://docs.aws.amazon.com/systems-manager/latest/userguide/systems-manager-setting-up-messageAPIs.html`).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.core.exceptions import ServiceException
from moto.ssm.models import ssm_backends

from lab.api import answers
from lab.api.answers import Answer
from lab.api.call import Call
from lab.moto import role_sessions
from lab.moto.instances import LabInstance
from lab.moto.ssm import agents, commands, documents, shown
from lab.moto.ssm.errors import SsmError

Request = dict[str, Any]
_JSON = "application/x-amz-json-1.1"
_MESSAGES = "EC2WindowsMessageDeliveryService"
# How long a command waits for its instance when SendCommand does not say.
_LIFETIME = 3600
_NOT_DONE = ("NotificationConfig", "OutputS3BucketName", "CloudWatchOutputConfig")


class Manager:
    """Systems Manager of all regions: `answer` is its calls."""

    def __init__(self) -> None:
        self.agents = agents.Agents()
        self.commands: dict[str, commands.Command] = {}
        self._calls: dict[str, Callable[[str, Request], Any]] = {
            "AmazonSSM.DescribeInstanceInformation": self._describe,
            "AmazonSSM.SendCommand": self._send,
            "AmazonSSM.CancelCommand": self._cancel,
            "AmazonSSM.ListCommandInvocations": self._invocations,
        }
        self._of_agents: dict[str, Callable[[LabInstance, str, Request], Any]] = {
            "AmazonSSM.UpdateInstanceInformation": lambda *_: None,
            f"{_MESSAGES}.GetMessages": self._wait,
            f"{_MESSAGES}.SendReply": self._reply,
        }

    def answer(self, call: Call) -> Answer | None:
        """The answer to a call of Systems Manager; None for one that moto answers."""
        if call.target not in self._calls and call.target not in self._of_agents:
            return None
        try:
            return answers.json_answer(self._answer(call, _read(call.body)) or {}, kind=_JSON)
        except SsmError as error:
            refusal = {"__type": error.code, "message": error.message}
            return answers.json_answer(refusal, "400 Bad Request", _JSON)

    def _answer(self, call: Call, request: Request) -> Any:
        if call.target in self._calls:
            return self._calls[call.target](call.region, request)
        caller = role_sessions.instance_of(call.token)
        if caller is None:
            raise SsmError("AccessDeniedException", "the session token is not of an instance")
        if call.action == "UpdateInstanceInformation":
            self.agents.hear(caller[0].id, caller[0].region_name, caller[1], request)
            return None
        return self._of_agents[call.target](caller[0], caller[1], request)

    # What agents call.

    def _wait(self, instance: LabInstance, role: str, request: Request) -> Request:
        return {"Destination": instance.id, "Messages": self.agents.wait(instance.id)}

    def _reply(self, instance: LabInstance, role: str, request: Request) -> None:
        command = self.commands.get(str(request.get("CommandId")))
        if command:
            commands.reply(command, instance.id, request)
            commands.advance(command, self._deliver)

    def _deliver(self, instance_id: str, message: Request) -> bool:
        agent = self.agents.find(instance_id)
        if agent:
            agent.messages.put(message)
        return agent is not None

    # What users call.

    def _describe(self, region: str, request: Request) -> Request:
        _refuse(request, "InstanceInformationFilterList")
        listed = [agents.described(agent) for agent in self._alive(region)]
        for chosen in request.get("Filters", []):
            listed = _with_ids(listed, chosen)
        return _page("InstanceInformationList", listed, request)

    def _alive(self, region: str) -> list[agents.Agent]:
        there = {machine.id: machine for machine in list(LabInstance.machines.by_address.values())}
        for agent in self.agents.in_region(region):
            if agent.instance_id not in there:
                self.agents.forget(agent.instance_id)
        return self.agents.in_region(region)

    def _send(self, region: str, request: Request) -> Request:
        name = str(request.get("DocumentName", ""))
        content = _document(region, name, request)
        arguments = request.get("Parameters", {})
        parameters = documents.values(content, arguments)
        _refuse(
            request,
            "NotificationConfig",
            "OutputS3BucketName",
            "CloudWatchOutputConfig",
            "InstanceIds",
        )
        listed = [agents.described(agent) for agent in self._alive(region)]
        for chosen in request.get("Targets", []):
            listed = _with_ids(listed, chosen)
        targets = [str(described["InstanceId"]) for described in listed]
        steps = documents.steps(content, parameters)
        concurrency = commands.number(
            str(request.get("MaxConcurrency", "50")), len(targets), "MaxConcurrency"
        )
        command = commands.Command(
            request=request,
            document=name,
            parameters=arguments,
            region=region,
            invocations=[
                commands.Invocation(target, [commands.Plugin(step) for step in steps], time.time())
                for target in targets
            ],
            concurrency=concurrency,
            errors=commands.number(str(request.get("MaxErrors", "0")), len(targets), "MaxErrors"),
            lifetime=float(request.get("TimeoutSeconds", _LIFETIME)),
        )
        self.commands[command.id] = command
        # SendCommand answers Pending; counts come with ListCommands.
        answer = {"Command": shown.command(command)}
        commands.advance(command, self._deliver)
        return answer

    def _cancel(self, region: str, request: Request) -> None:
        _refuse(request, "InstanceIds")
        command = self._command(str(request.get("CommandId")))
        with command.lock:
            command.cancelled = True
            for invocation in command.invocations:
                if invocation.status in commands.FINAL:
                    continue
                if invocation.sent:
                    invocation.status = invocation.details = "Cancelling"
                    message = {"Kind": "cancel", "CommandId": command.id}
                    self._deliver(invocation.instance_id, message)
                else:
                    commands.finish(invocation, "Cancelled", "Cancelled")
        commands.advance(command, self._deliver)

    def _command(self, command_id: str) -> commands.Command:
        command = self.commands.get(command_id)
        if command is None:
            raise SsmError("InvalidCommandId", f"there is no command {command_id}")
        commands.advance(command, self._deliver)
        return command

    def _invocations(self, region: str, request: Request) -> Request:
        _refuse(request, "Filters", "InstanceId")
        command = self._command(str(request.get("CommandId")))
        details = bool(request.get("Details"))
        listed = [shown.invocation(command, each, details=details) for each in command.invocations]
        return _page("CommandInvocations", listed, request)


def _read(body: bytes) -> Request:
    """The members of a call. Raises SsmError for a body that is not a JSON object."""
    try:
        read = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise SsmError("SerializationException", "The body of the request is not a JSON object")
    return read


def _refuse(request: Request, *members: str) -> None:
    """Refuse what would be accepted and not happen."""
    for name in members:
        if request.get(name):
            raise SsmError("UnsupportedOperation", f"AMI Kiln lab: {name} is not implemented")


def _with_ids(listed: list[Request], chosen: Request) -> list[Request]:
    """The agents of the ids that a filter or target names."""
    if chosen["Key"] != "InstanceIds":
        raise SsmError("UnsupportedOperation", f"AMI Kiln lab: {chosen['Key']} is not implemented")
    return [described for described in listed if described["InstanceId"] in chosen["Values"]]


def _document(region: str, name: str, request: Request) -> documents.Content:
    if name == "AWS-RunShellScript":
        return documents.RUN_SHELL_SCRIPT
    if name.startswith("AWS"):
        raise SsmError("UnsupportedOperation", f"AMI Kiln lab: {name} is not implemented")
    version = request.get("DocumentVersion")
    backend = ssm_backends[DEFAULT_ACCOUNT_ID][region]
    try:
        document = backend.get_document(
            name, None if version == "$DEFAULT" else version, None, "JSON"
        )
    except ServiceException as error:
        if type(error).__name__ == "InvalidDocumentVersion":
            raise SsmError("InvalidDocumentVersion", "The document version is not valid") from None
        raise SsmError("InvalidDocument", f"Document with name {name} does not exist.") from None
    text = str(document["Content"])
    wanted = request.get("DocumentHash")
    # That another hash is refused is the parameter's purpose; the error's name is assumed.
    # https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_SendCommand.html
    if wanted and wanted != hashlib.sha256(text.encode()).hexdigest():
        raise SsmError("InvalidDocument", f"The hash of the document {name} is not {wanted}.")
    return documents.parse(text)


def _page(name: str, rows: list[Any], request: Request) -> Request:
    """A page of a list. The token is the place where the next one starts."""
    token = str(request.get("NextToken") or "0")
    if not re.fullmatch("[0-9]{1,9}", token):
        raise SsmError("InvalidNextToken", "The specified token is not valid.")
    start = int(token)
    end = start + int(request.get("MaxResults") or 50)
    more = {"NextToken": str(end)} if end < len(rows) else {}
    return {name: rows[start:end], **more}
