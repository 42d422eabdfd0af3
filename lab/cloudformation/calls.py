"""CloudFormation's calls."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from lab.cloudformation import change_sets, stacks, template
from lab.cloudformation.errors import CloudFormationError
from lab.cloudformation.kinds.kind import Place
from lab.cloudformation.stacks import Stack, Wanted

Request = Mapping[str, Any]
_LONGEST = 51_200
_IAM = (
    *("AWS::IAM::Role", "AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"),
    "AWS::IAM::InstanceProfile",
)
_PAGE = 100
_REVIEW = "REVIEW_IN_PROGRESS"
_ROLLS_BACK = ("DisableRollback", "false")
# https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-supplied-parameter-types.html
_LOOKED_UP = re.compile(r"AWS::SSM::Parameter::Value<(String|AWS::EC2::Image::Id)>")
_TYPES = re.compile(r"String|Number|CommaDelimitedList|AWS::EC2::\w+::\w+")
# Parameters of calls that this lab does as they are, or that change nothing here.
_READ = {
    "CreateStack": "StackName TemplateBody Parameters Capabilities Tags ClientRequestToken",
    "UpdateStack": "StackName TemplateBody Parameters Capabilities Tags UsePreviousTemplate",
    "DeleteStack": "StackName ClientRequestToken",
    "DescribeStacks": "StackName NextToken",
    "DescribeStackEvents": "StackName NextToken",
    "DescribeStackResources": "StackName",
    "ListStackResources": "StackName NextToken",
    "GetTemplate": "StackName TemplateStage",
    "GetTemplateSummary": "StackName TemplateBody",
    "ValidateTemplate": "TemplateBody",
    "CreateChangeSet": "StackName ChangeSetName ChangeSetType TemplateBody Parameters Capabilities "
    "Tags UsePreviousTemplate Description ClientToken",
    "DescribeChangeSet": "ChangeSetName StackName NextToken",
    "ExecuteChangeSet": "ChangeSetName StackName ClientRequestToken",
    "DeleteChangeSet": "ChangeSetName StackName",
}
NAMES = tuple(_READ)


class Region:
    """The stacks of an account in a region."""

    def __init__(self) -> None:
        self.stacks: list[Stack] = []
        self.lock = threading.Lock()

    def live(self, name: str) -> Stack | None:
        """The stack of that name or id that is there; of an id also one that is gone."""
        for stack in reversed(self.stacks):
            if stack.id == name or (stack.name == name and stack.status != "DELETE_COMPLETE"):
                return stack
        return None

    def find(self, name: str) -> Stack:
        """Raises CloudFormationError for a stack that is not there."""
        stack = self.live(name)
        if stack is None:
            raise CloudFormationError(f"Stack with id {name} does not exist")
        return stack


def answer(region: Region, call: str, request: Request, place: Callable[[Request], Place]) -> Any:
    """What a call returns. Raises CloudFormationError."""
    if call not in _READ:
        raise CloudFormationError(f"AMI Kiln lab: {call} is not implemented", "InvalidAction")
    # What is so anyway, which the AWS CLI says.
    request = {key: value for key, value in request.items() if (key, value) != _ROLLS_BACK}
    extra = sorted(set(request) - set(_READ[call].split()))
    if extra:
        raise CloudFormationError(f"AMI Kiln lab: {', '.join(extra)} of {call} is not implemented")
    return _CALLS[call](region, request, place)


def _create(region: Region, request: Request, place: Callable[[Request], Place]) -> Any:
    with region.lock:
        if region.live(request["StackName"]):
            name = request["StackName"]
            raise CloudFormationError(f"Stack [{name}] already exists", "AlreadyExistsException")
        stack = _new_stack(region, request, place(request), "CREATE_IN_PROGRESS")
    stacks.start(stacks.create, stack)
    return {"StackId": stack.id}


def _new_stack(region: Region, request: Request, there: Place, status: str) -> Stack:
    """A stack without resources, remembered in the region."""
    name = str(request["StackName"])
    wanted = _wanted(request, there, None)
    arn = f"arn:aws:cloudformation:{there.region}:{there.account}:stack/{name}/{uuid.uuid4()}"
    stack = Stack(name, arn, there, wanted)
    stack.become(status, "User Initiated")
    region.stacks.append(stack)
    return stack


def _wanted(request: Request, place: Place, stack: Stack | None) -> Wanted:
    """The template and parameters of a request. Raises CloudFormationError."""
    text = request.get("TemplateBody")
    if text is None and stack is not None and request.get("UsePreviousTemplate") == "true":
        text = stack.wanted.text
    if not text:
        raise CloudFormationError("Either Template URL or Template Body must be specified.")
    if len(text.encode()) > _LONGEST:
        raise CloudFormationError(
            "1 validation error detected: Value at 'templateBody' failed to satisfy constraint: "
            f"Member must have length less than or equal to {_LONGEST}"
        )
    data = template.read_template(text)
    for name, resource in data["Resources"].items():
        if resource["Type"] not in stacks.KINDS:
            raise CloudFormationError(
                f"AMI Kiln lab: {name}: {resource['Type']} is not implemented"
            )
    kinds = {resource["Type"] for resource in data["Resources"].values()}
    capable = {*request.get("Capabilities", [])} & {"CAPABILITY_IAM", "CAPABILITY_NAMED_IAM"}
    if kinds & set(_IAM) and not capable:
        raise CloudFormationError(
            "Requires capabilities : [CAPABILITY_IAM]", "InsufficientCapabilitiesException"
        )
    parameters = {
        parameter["ParameterKey"]: None
        if parameter.get("UsePreviousValue") == "true"
        else parameter.get("ParameterValue", "")
        for parameter in request.get("Parameters", [])
    }
    before = stack.wanted.parameters if stack else {}
    values = template.parameter_values(data, parameters, before)
    return Wanted(text, data, values, _resolved(data, values, place), place.tags)


def _resolved(data: Mapping[str, Any], values: Mapping[str, str], place: Place) -> dict[str, Any]:
    resolved: dict[str, Any] = {}
    for name, value in values.items():
        kind = data["Parameters"][name]["Type"]
        if _LOOKED_UP.fullmatch(kind):
            answer = place.client("ssm").get_parameters(Names=[value])
            if not answer["Parameters"]:
                raise CloudFormationError(
                    f"Unable to fetch parameters [{value}] from parameter store for this account."
                )
            resolved[name] = answer["Parameters"][0]["Value"]
        elif kind == "CommaDelimitedList" or kind.startswith("List<"):
            resolved[name] = [part.strip() for part in value.split(",")]
        elif _TYPES.fullmatch(kind):
            resolved[name] = value
        else:
            raise CloudFormationError(f"AMI Kiln lab: parameters of {kind} are not implemented")
    return resolved


def _update(region: Region, request: Request, place: Callable[[Request], Place]) -> Any:
    stack = _settled(region.find(request["StackName"]))
    wanted = _wanted(request, _retagged(stack, request, place), stack)
    if not change_sets.changes(stack, wanted) and wanted.tags == stack.place.tags:
        raise CloudFormationError("No updates are to be performed.")
    _begin_update(stack, wanted)
    return {"StackId": stack.id}


def _retagged(stack: Stack, request: Request, place: Callable[[Request], Place]) -> Place:
    """Where the stack is, with the tags of an update. One that names none keeps them.

    https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_UpdateStack.html
    """
    return replace(stack.place, tags=place(request).tags) if "Tags" in request else stack.place


def _begin_update(stack: Stack, wanted: Wanted) -> None:
    stack.become("UPDATE_IN_PROGRESS", "User Initiated")
    stacks.start(lambda entry: stacks.update(entry, wanted), stack)


def _settled(stack: Stack) -> Stack:
    if stack.status.endswith("_IN_PROGRESS") or stack.status == "ROLLBACK_COMPLETE":
        raise CloudFormationError(
            f"Stack:{stack.id} is in {stack.status} state and can not be updated."
        )
    return stack


def _delete(region: Region, request: Request, place: Callable[[Request], Place]) -> Any:
    stack = region.live(request["StackName"])
    if stack and not stack.status.startswith("DELETE_IN") and stack.status != "DELETE_COMPLETE":
        stack.become("DELETE_IN_PROGRESS", "User Initiated")
        stacks.start(stacks.delete, stack)
    return None


def _describe(region: Region, request: Request, place: Callable[[Request], Place]) -> Any:
    if "StackName" in request:
        return {"Stacks": [_shown(region.find(request["StackName"]))]}
    return {
        "Stacks": [_shown(stack) for stack in region.stacks if stack.status != "DELETE_COMPLETE"]
    }


def _shown(stack: Stack) -> dict[str, Any]:
    return {
        "StackId": stack.id,
        "StackName": stack.name,
        "Description": stack.wanted.data.get("Description", ""),
        "Parameters": [
            {"ParameterKey": key, "ParameterValue": value}
            for key, value in stack.wanted.parameters.items()
        ],
        "CreationTime": stack.created,
        "StackStatus": stack.status,
        **({"StackStatusReason": stack.reason} if stack.reason else {}),
        "Capabilities": ["CAPABILITY_IAM"],
        "Outputs": [
            {"OutputKey": key, "OutputValue": value} for key, value in stack.outputs.items()
        ],
        "Tags": stack.place.all_tags(),
    }


def _events(region: Region, request: Request, place: Callable[[Request], Place]) -> Any:
    newest_first = list(reversed(region.find(request["StackName"]).events))
    start = int(request.get("NextToken") or 0)
    more = {"NextToken": str(start + _PAGE)} if len(newest_first) > start + _PAGE else {}
    return {"StackEvents": newest_first[start : start + _PAGE], **more}


def _resources(region: Region, request: Request, place: Callable[[Request], Place]) -> Any:
    stack = region.find(request["StackName"])
    return {"StackResources": [{**_resource(resource), "StackName": stack.name, "StackId": stack.id,
                                "Timestamp": datetime.now(timezone.utc)}
                               for resource in stack.resources.values()]}  # fmt: skip


def _listed(region: Region, request: Request, place: Callable[[Request], Place]) -> Any:
    resources = region.find(request["StackName"]).resources.values()
    now = datetime.now(timezone.utc)
    return {"StackResourceSummaries": [
        {**_resource(item), "LastUpdatedTimestamp": now} for item in resources
    ]}  # fmt: skip


def _resource(resource: stacks.Resource) -> dict[str, Any]:
    return {
        "LogicalResourceId": resource.name,
        "PhysicalResourceId": resource.made.id,
        "ResourceType": resource.type,
        "ResourceStatus": "CREATE_COMPLETE",
    }


def _get_template(region: Region, request: Request, place: Callable[[Request], Place]) -> Any:
    return {"TemplateBody": region.find(request["StackName"]).wanted.text}


def _summary(region: Region, request: Request, place: Callable[[Request], Place]) -> Any:
    text = request.get("TemplateBody") or region.find(request["StackName"]).wanted.text
    data = template.read_template(text)
    shown = [
        {
            "ParameterKey": name,
            "ParameterType": rules["Type"],
            **({"DefaultValue": template.as_text(rules["Default"])} if "Default" in rules else {}),
        }
        for name, rules in data.get("Parameters", {}).items()
    ]
    kinds = sorted({resource["Type"] for resource in data["Resources"].values()})
    about = {"Description": data.get("Description", ""), "ResourceTypes": kinds}
    return {"Parameters": shown, **about}


def _validate(region: Region, request: Request, place: Callable[[Request], Place]) -> Any:
    data = template.read_template(request["TemplateBody"])
    shown = [
        {"ParameterKey": name, "DefaultValue": str(rules.get("Default", ""))}
        for name, rules in data.get("Parameters", {}).items()
    ]
    return {"Parameters": shown, "Description": data.get("Description", "")}


def _create_change_set(region: Region, request: Request, place: Callable[[Request], Place]) -> Any:
    kind = request.get("ChangeSetType", "UPDATE")
    if kind == "CREATE":
        stack = _in_review(region, request, place(request))
    elif kind == "UPDATE":
        stack = _settled(region.find(request["StackName"]))
    else:
        raise CloudFormationError(f"AMI Kiln lab: change sets of {kind} are not implemented")
    wanted = _wanted(request, _retagged(stack, request, place), stack)
    made = change_sets.made(stack, str(request["ChangeSetName"]), wanted)
    return {"Id": made.id, "StackId": stack.id}


def _in_review(region: Region, request: Request, there: Place) -> Stack:
    """The stack that a change set of a creation makes, which has nothing until it is executed."""
    with region.lock:
        stack = region.live(request["StackName"])
        if stack is None:
            return _new_stack(region, request, there, _REVIEW)
    if stack.status != _REVIEW:
        raise CloudFormationError(
            f"Stack [{stack.name}] already exists and cannot be created again with the changeSet "
            f"[{request['ChangeSetName']}]."
        )
    return stack


def _change_set(region: Region, request: Request) -> tuple[Stack, change_sets.ChangeSet]:
    wanted = request["ChangeSetName"]
    for stack in region.stacks:
        for change_set in stack.change_sets.values():
            if change_set.id == wanted or (
                change_set.name == wanted and request.get("StackName") == stack.name
            ):
                return stack, change_set
    raise CloudFormationError(f"ChangeSet [{wanted}] does not exist", "ChangeSetNotFound")


def _describe_change_set(
    region: Region, request: Request, place: Callable[[Request], Place]
) -> Any:
    stack, change_set = _change_set(region, request)
    return {
        "ChangeSetName": change_set.name,
        "ChangeSetId": change_set.id,
        "StackId": stack.id,
        "StackName": stack.name,
        "Status": "CREATE_COMPLETE" if change_set.changes else "FAILED",
        **({} if change_set.changes else {"StatusReason": change_sets.NOTHING}),
        "ExecutionStatus": "AVAILABLE" if change_set.changes else "UNAVAILABLE",
        "Changes": [
            {"Type": "Resource", "ResourceChange": change} for change in change_set.changes
        ],
    }


def _execute(region: Region, request: Request, place: Callable[[Request], Place]) -> Any:
    stack, change_set = _change_set(region, request)
    if not change_set.changes:
        raise CloudFormationError(
            f"ChangeSet [{change_set.id}] cannot be executed in its current status of [FAILED]",
            "InvalidChangeSetStatus",
        )
    if stack.status == _REVIEW:
        stack.wanted = change_set.wanted
        stack.become("CREATE_IN_PROGRESS", "User Initiated")
        stacks.start(stacks.create, stack)
    else:
        _begin_update(_settled(stack), change_set.wanted)
    stack.change_sets.clear()
    return {}


def _delete_change_set(region: Region, request: Request, place: Callable[[Request], Place]) -> Any:
    stack, change_set = _change_set(region, request)
    del stack.change_sets[change_set.id]
    return {}


_CALLS: Mapping[str, Callable[[Region, Request, Callable[[Request], Place]], Any]] = {
    "CreateStack": _create,
    "UpdateStack": _update,
    "DeleteStack": _delete,
    "DescribeStacks": _describe,
    "DescribeStackEvents": _events,
    "DescribeStackResources": _resources,
    "ListStackResources": _listed,
    "GetTemplate": _get_template,
    "GetTemplateSummary": _summary,
    "ValidateTemplate": _validate,
    "CreateChangeSet": _create_change_set,
    "DescribeChangeSet": _describe_change_set,
    "ExecuteChangeSet": _execute,
    "DeleteChangeSet": _delete_change_set,
}
