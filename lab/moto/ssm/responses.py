"""Systems Manager's answers: Parameter Store's list, and Run Command for users and for agents.

Agents call the message delivery service too, which the lab's dispatcher leads here:
https://docs.aws.amazon.com/systems-manager/latest/userguide/systems-manager-setting-up-messageAPIs.html
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.ssm.exceptions import AccessDeniedException, InvalidDocument, SSMException
from moto.ssm.responses import SimpleSystemManagerResponse

from lab.moto import role_sessions
from lab.moto.ssm import commands, documents, shown

Request = dict[str, Any]
# How long a command waits for its instance when SendCommand does not say.
_LIFETIME = 3600


class LabSSMResponse(SimpleSystemManagerResponse):  # type: ignore[misc]
    """Systems Manager's answers."""

    @property
    def _request(self) -> Request:
        return dict(json.loads(self.body or "{}"))

    def describe_parameters(self) -> ActionResult:
        """List a page; moto: ten parameters, whatever MaxResults says."""
        request = self._request
        described = self.ssm_backend.describe_parameters(
            request.get("Filters"), request.get("ParameterFilters")
        )
        rows = [each.describe_response_object() for each in described]
        return _page("Parameters", rows, request, size=10)

    # The users' calls.

    def describe_instance_information(self) -> ActionResult:
        """List the agents."""
        request = self._request
        _refuse(request, "InstanceInformationFilterList")
        listed = self._agents(request.get("Filters", []))
        return _page("InstanceInformationList", listed, request)

    def send_command(self) -> ActionResult:
        """Send a command to the agents that its targets name."""
        request = self._request
        name = str(request.get("DocumentName", ""))
        content = self._document(name, request)
        arguments = request.get("Parameters", {})
        parameters = documents.values(content, arguments)
        _refuse(
            request,
            "NotificationConfig",
            "OutputS3BucketName",
            "CloudWatchOutputConfig",
            "InstanceIds",
        )
        targets = [str(each["InstanceId"]) for each in self._agents(request.get("Targets", []))]
        steps = documents.steps(content, parameters)
        concurrency = commands.number(
            str(request.get("MaxConcurrency", "50")), len(targets), "MaxConcurrency"
        )
        command = commands.Command(
            request=request,
            document=name,
            parameters=arguments,
            invocations=[
                commands.Invocation(target, [commands.Plugin(step) for step in steps], time.time())
                for target in targets
            ],
            concurrency=concurrency,
            errors=commands.number(str(request.get("MaxErrors", "0")), len(targets), "MaxErrors"),
            lifetime=float(request.get("TimeoutSeconds", _LIFETIME)),
        )
        self.ssm_backend.sent[command.id] = command
        # SendCommand answers Pending; counts come with ListCommands.
        answer = ActionResult({"Command": shown.command(command)})
        commands.advance(command, self.ssm_backend.deliver)
        return answer

    def cancel_command(self) -> EmptyResult:
        """Cancel a command on all its instances."""
        request = self._request
        _refuse(request, "InstanceIds")
        command = self._command(request)
        commands.cancel(command, self.ssm_backend.deliver)
        return EmptyResult()

    def list_command_invocations(self) -> ActionResult:
        """List what became of a command."""
        request = self._request
        _refuse(request, "Filters", "InstanceId")
        command = self._command(request)
        details = bool(request.get("Details"))
        listed = [shown.invocation(command, each, details=details) for each in command.invocations]
        return _page("CommandInvocations", listed, request)

    # The agents' calls. botocore knows none of them: their answers are text.

    def update_instance_information(self) -> str:
        """Note what an agent says of itself."""
        self.ssm_backend.agents.hear(self._caller(), self._request)
        return "{}"

    def get_messages(self) -> str:
        """Answer an agent's question for messages, which is held for a while without a lock."""
        instance_id = self._caller()
        messages = self.ssm_backend.agents.wait(instance_id)
        return json.dumps({"Destination": instance_id, "Messages": messages})

    def send_reply(self) -> str:
        """Note what an agent says of a command."""
        instance_id, request = self._caller(), self._request
        command = self.ssm_backend.sent.get(str(request.get("CommandId")))
        if command:
            commands.reply(command, instance_id, request)
            commands.advance(command, self.ssm_backend.deliver)
        return "{}"

    def _caller(self) -> str:
        """The id of the instance whose agent calls."""
        instance_id = role_sessions.instance_of(self.headers.get("X-Amz-Security-Token", ""))
        if instance_id is None:
            raise AccessDeniedException("the session token is not of an instance")
        return instance_id

    def _agents(self, chosen: list[Request]) -> list[Request]:
        """The agents with the ids that each filter or target names."""
        listed = [shown.agent(agent) for agent in self.ssm_backend.live_agents()]
        for each in chosen:
            if each["Key"] != "InstanceIds":
                raise _not_implemented(each["Key"])
            listed = [agent for agent in listed if agent["InstanceId"] in each["Values"]]
        return listed

    def _command(self, request: Request) -> commands.Command:
        command_id = str(request.get("CommandId"))
        command: commands.Command | None = self.ssm_backend.sent.get(command_id)
        if command is None:
            raise SSMException("InvalidCommandId", f"there is no command {command_id}")
        commands.advance(command, self.ssm_backend.deliver)
        return command

    def _document(self, name: str, request: Request) -> documents.Content:
        if name == "AWS-RunShellScript":
            return documents.RUN_SHELL_SCRIPT
        if name.startswith("AWS"):
            raise _not_implemented(name)
        version = request.get("DocumentVersion")
        version = None if version == "$DEFAULT" else version
        try:
            document = self.ssm_backend.get_document(name, version, None, "JSON")
        except InvalidDocument:
            raise InvalidDocument(f"Document with name {name} does not exist.") from None
        text = str(document["Content"])
        wanted = request.get("DocumentHash")
        # Systems Manager rejects another hash; the error's name is assumed.
        # https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_SendCommand.html
        if wanted and wanted != hashlib.sha256(text.encode()).hexdigest():
            raise InvalidDocument(f"The hash of the document {name} is not {wanted}.")
        return documents.parse(text)


def _refuse(request: Request, *members: str) -> None:
    """Refuse what would be accepted and not happen."""
    for name in members:
        if request.get(name):
            raise _not_implemented(name)


def _not_implemented(name: str) -> SSMException:
    return SSMException("UnsupportedOperation", f"AMI Kiln lab: {name} is not implemented")


def _page(name: str, rows: list[Any], request: Request, size: int = 50) -> ActionResult:
    """A page of a list. The token is the place where the next one starts."""
    token = str(request.get("NextToken") or "0")
    if not re.fullmatch("[0-9]{1,9}", token):
        raise SSMException("InvalidNextToken", "The specified token is not valid.")
    start = int(token)
    end = start + int(request.get("MaxResults") or size)
    more = {"NextToken": str(end)} if end < len(rows) else {}
    return ActionResult({name: rows[start:end], **more})
