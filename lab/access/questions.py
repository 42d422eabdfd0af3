"""What IAM is asked about a request: its action, the resources, and the condition keys.

What of AWS's services is not described in resources.yaml is asked without a resource: statements on
`*` decide about it.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from kiln.base import plain_yaml
from lab.access import of_ec2, of_s3, one_meaning
from lab.access.conditions import Context
from lab.access.iam_policy import Question
from lab.access.of_ec2 import Look
from lab.access.principals import Caller

# The name in a signature → the one in policies, where they differ.
_PREFIXES = {"monitoring": "cloudwatch", "email": "ses"}
# Targets of JSON protocols → service. The lab answers these whichever service the signature names.
_TARGETS = {"EC2WindowsMessageDeliveryService": "ec2messages", "AmazonSSM": "ssm"}
# Condition keys of every request that the lab gives a value, or knows to be absent.
_GLOBAL = frozenset(
    {
        *("aws:RequestedRegion", "aws:PrincipalAccount", "aws:PrincipalArn", "aws:PrincipalType"),
        *("aws:userid", "aws:username", "aws:SourceIp", "aws:CurrentTime", "aws:EpochTime"),
        *("aws:ResourceAccount", "aws:PrincipalTag/", "ec2:SourceInstanceARN"),
        "aws:SecureTransport",
        # Only calls that a service of AWS makes for somebody have these, and those with MFA this.
        *(
            "aws:CalledVia",
            "aws:SourceArn",
            "aws:SourceAccount",
            "aws:SourceOwner",
            "aws:MultiFactorAuthPresent",
        ),
    }
)


@dataclass(frozen=True)
class Call:
    """A request: service as policies name it, action ("" for one that the lab cannot name)."""

    service: str
    action: str
    region: str
    parameters: dict[str, Any]


def questions(
    environ: Mapping[str, Any], body: bytes, caller: Caller, look: Look
) -> list[Question]:
    """What IAM is asked. `look` knows EC2's resources."""
    call = read(environ, body)
    context = _context(environ, call, caller)
    if call.service == "s3":
        # https://docs.aws.amazon.com/AmazonS3/latest/userguide/amazon-s3-policy-keys.html
        prefix = dict(parse_qsl(str(environ.get("QUERY_STRING", "")))).get("prefix")
        listed = {**context, "s3:prefix": prefix} if prefix else context
        return [
            Question(f"s3:{action}", resource, Context(listed, _GLOBAL | {"s3:prefix"}))
            if action == "ListBucket"
            else Question(f"s3:{action}", resource, Context(context, _GLOBAL))
            for action, resource in of_s3.permissions(environ, body)
        ]
    action = f"{call.service}:{call.action}"
    if call.service == "ec2":
        return [
            Question(
                entry.action,
                entry.resource,
                Context({**context, **entry.context}, _condition_keys(entry)),
            )
            for entry in of_ec2.permissions(
                call.action, call.parameters, call.region, caller.account, look
            )
        ]
    condition_keys = _GLOBAL
    if action == "cloudwatch:PutMetricData":
        context["cloudwatch:namespace"] = str(call.parameters.get("Namespace", ""))
        condition_keys |= {"cloudwatch:namespace"}
    if action == "sts:AssumeRole":
        parameter_names = {"sts:ExternalId": "ExternalId", "sts:RoleSessionName": "RoleSessionName"}
        context |= {
            key: str(p) for key, name in parameter_names.items() if (p := call.parameters.get(name))
        }
        condition_keys |= set(parameter_names)
    resources = _resources(call, caller.account, look)
    if call.service == "ssm":
        return [
            Question(
                action,
                item,
                Context({**context, **_tags_in_ssm(item, look)}, condition_keys | _OF_SSM),
            )
            for item in resources
        ]
    return [Question(action, resource, Context(context, condition_keys)) for resource in resources]


# The lab always requires permission to use the session's document:
# https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-sessiondocumentaccesscheck.html
_OF_SSM = frozenset({"ssm:resourceTag/", "aws:ResourceTag/"})


def _tags_in_ssm(resource: str | None, look: Look) -> dict[str, str]:
    """The tags of an instance or a session, as Systems Manager's policies see them."""
    shape = re.fullmatch(
        r"arn:aws:(?:ec2|ssm):([^:]*):[^:]*:(instance|session)/(.+)", resource or ""
    )
    tags = look(shape[2], shape[3], shape[1]).tags if shape else {}
    keys = {"ssm:SessionDocumentAccessCheck": "true"}
    for key, value in tags.items():
        keys |= {f"ssm:resourceTag/{key}": value, f"aws:ResourceTag/{key}": value}
    return keys


def _condition_keys(entry: of_ec2.Permission) -> frozenset[str]:
    return _GLOBAL | of_ec2.CONDITION_KEYS if entry.resource is not None else _GLOBAL


def read(environ: Mapping[str, Any], body: bytes) -> Call:
    """The call that a signed request makes."""
    query = str(environ.get("QUERY_STRING", ""))
    region, service = _scope(environ)
    service = _PREFIXES.get(service, service)
    target = str(environ.get("HTTP_X_AMZ_TARGET", ""))
    if target:
        family, _, action = target.rpartition(".")
        return Call(_TARGETS.get(family, service), action, region, _json(body))
    rpc = re.fullmatch(r"/service/[^/]+/operation/(\w+)", str(environ.get("PATH_INFO", "")))
    if rpc:
        return Call(service, rpc[1], region, {})
    form = dict(parse_qsl(query, keep_blank_values=True))
    if one_meaning.is_form(environ):
        form |= dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    return Call(service, form.get("Action", ""), region, form)


def service(environ: Mapping[str, Any]) -> str:
    """The service that a request is signed for, in lower case."""
    return _scope(environ)[1]


def _scope(environ: Mapping[str, Any]) -> tuple[str, str]:
    query = str(environ.get("QUERY_STRING", ""))
    presigned = dict(parse_qsl(query)).get("X-Amz-Credential", "")
    signature = f"{environ.get('HTTP_AUTHORIZATION', '')}&{presigned}"
    scope = re.search(r"/[0-9]{8}/([^/]+)/([^/]+)/aws4_request", signature)
    return (scope[1], scope[2].lower()) if scope else ("", "")


def _json(body: bytes) -> dict[str, Any]:
    try:
        decoded = json.loads(body or b"{}")
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _context(environ: Mapping[str, Any], call: Call, caller: Caller) -> dict[str, Any]:
    now = time.time()
    context: dict[str, Any] = {
        "aws:RequestedRegion": call.region,
        "aws:PrincipalAccount": caller.account,
        "aws:ResourceAccount": caller.account,
        "aws:PrincipalArn": caller.principal,
        "aws:PrincipalType": caller.kind,
        "aws:userid": caller.user_id,
        "aws:CurrentTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        "aws:EpochTime": str(int(now)),
        # The lab's own port has no TLS, and stands for AWS's, which have.
        "aws:SecureTransport": "true",
    }
    address = caller.address or str(environ.get("REMOTE_ADDR", ""))
    context |= {"aws:SourceIp": address} if address else {}
    context |= {"aws:username": caller.name} if caller.name else {}
    context |= {"ec2:SourceInstanceARN": caller.instance} if caller.instance else {}
    return context | {f"aws:PrincipalTag/{name}": value for name, value in caller.tags}


@functools.cache
def _described() -> dict[str, Any]:
    return dict(plain_yaml.read_plain(Path(__file__).with_name("resources.yaml"))["services"])


def _resources(call: Call, account: str, look: Look) -> list[str | None]:
    """The ARNs of a call's resources."""
    service = _described().get(call.service, {})
    kinds = service.get("actions", {}).get(call.action)
    if kinds is None:
        return [None]
    arns: list[str | None] = []
    for kind in kinds:
        arn, *names = service["kinds"][kind]
        values = [_values(call.parameters, name) for name in names]
        if any(value == [] for value in values):
            continue
        for row in _product(values):
            # In policies a key goes by its id, whatever a call names it by.
            key_id = look(kind, row[0], call.region).id if kind == "key" else None
            names = [key_id] if key_id else row
            # A name that is an ARN already, as a topic's or a role's.
            whole = len(names) == 1 and names[0].startswith("arn:")
            # AWS's own parameters and documents are in no account:
            # https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-public-parameters-ami.html
            # https://docs.aws.amazon.com/systems-manager/latest/userguide/run-command-setting-up.html
            own = ("aws/service/", "AWS-", "AmazonCloudWatch-Manage")
            public = call.service == "ssm" and len(names) == 1 and names[0].startswith(own)
            here = {"region": call.region, "account": "" if public else account}
            arns.append(names[0] if whole else arn.format(*names, **here))
    if kinds and not arns:
        return [None]
    return arns or ["*"]


def _product(values: list[list[str]]) -> list[list[str]]:
    rows: list[list[str]] = [[]]
    for options in values:
        rows = [[*row, option] for row in rows for option in options]
    return rows


def _values(parameters: Mapping[str, Any], name: str) -> list[str]:
    """The values of a parameter: one, a JSON list, or the query protocol's Name.1, Name.member.1.

    What stands after a | in the name is how the value is cut: `last` part of a URL, no leading `/`.
    """
    name, _, cut = name.partition("|")
    value = parameters.get(name)
    if value is None:
        pattern = re.compile(rf"{re.escape(name)}\.(member\.)?[0-9]+")
        listed = [text for key, text in parameters.items() if pattern.fullmatch(key)]
    else:
        listed = value if isinstance(value, list) else [value]
    texts = [str(item) for item in listed]
    if cut == "last":
        return [text.rstrip("/").rpartition("/")[2] for text in texts]
    return [text.lstrip("/") for text in texts] if cut == "bare" else texts
