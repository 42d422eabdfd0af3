"""Recycle Bin's own API, in front of moto, which has none: the rules that say what is kept.

Locks of rules are refused. https://docs.aws.amazon.com/recyclebin/latest/APIReference/
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from lab.access import bodies
from lab.ec2 import recycle_bin
from lab.ec2.recycle_bin import Rule

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Parameters = dict[str, Any]
REAL = ("CreateRule", "DeleteRule", "GetRule", "ListRules", "UpdateRule")
_SCOPE = re.compile(r"Credential=[^/]+/[0-9]+/([^/]+)/rbin/")
_RULE = re.compile(r"/rules/([^/]+)")
_MOST_DAYS = 365


class _RefusedError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def over(moto: Application) -> Application:
    """`moto`, with the calls about rules answered here."""

    def application(environ: Any, start_response: Callable[..., Any]) -> Iterable[bytes]:
        scope = _SCOPE.search(str(environ.get("HTTP_AUTHORIZATION", "")))
        if scope is None:
            return moto(environ, start_response)
        body = bodies.peeked(environ)
        backend = ec2_backends[DEFAULT_ACCOUNT_ID][scope[1]]
        headers = [("Content-Type", "application/json")]
        try:
            parameters = json.loads(body or b"{}")
            status, answer = _answer(
                backend, scope[1], environ["REQUEST_METHOD"], environ["PATH_INFO"], parameters
            )
        except _RefusedError as refused:
            status, answer = "400 Bad Request", {"Message": refused.message}
            headers.append(("x-amzn-ErrorType", refused.code))
        data = b"" if answer is None else json.dumps(answer).encode()
        start_response(status, [*headers, ("Content-Length", str(len(data)))])
        return [data]

    return application


def _answer(
    backend: Any, region: str, method: str, path: str, parameters: Parameters
) -> tuple[str, Parameters | None]:
    rules = recycle_bin.of(backend).rules
    if (method, path) == ("POST", "/rules"):
        rule = _made(parameters)
        rules[rule.id] = rule
        return "201 Created", _shown(rule, region) | {"Tags": parameters.get("Tags", [])}
    if (method, path) == ("POST", "/list-rules"):
        kind = parameters.get("ResourceType")
        shown = [_shown(rule, region) for rule in rules.values() if rule.kind == kind]
        short = ("Identifier", "Description", "RetentionPeriod", "RuleArn")
        return "200 OK", {"Rules": [{key: rule[key] for key in short} for rule in shown]}
    named = _RULE.fullmatch(path)
    if named is None or method not in ("GET", "PATCH", "DELETE"):
        raise _RefusedError(
            "ValidationException", f"AMI Kiln lab: {method} {path} of Recycle Bin is not there"
        )
    rule_found = rules.get(named[1])
    if rule_found is None:
        raise _RefusedError("ResourceNotFoundException", f"Rule not found: {named[1]}")
    if method == "DELETE":
        del rules[rule_found.id]
        return "204 No Content", None
    if method == "PATCH":
        as_asked = _as_asked(rule_found) | parameters
        rules[rule_found.id] = rule_found = _made(as_asked, rule_found.id)
    return "200 OK", _shown(rule_found, region)


def _made(parameters: Parameters, rule_id: str = "") -> Rule:
    kind = parameters.get("ResourceType")
    if kind not in (recycle_bin.IMAGE, recycle_bin.SNAPSHOT):
        raise _RefusedError(
            "ValidationException",
            f"AMI Kiln lab: the Recycle Bin keeps {recycle_bin.IMAGE} and {recycle_bin.SNAPSHOT}, "
            f"not {kind}",
        )
    if "LockConfiguration" in parameters:
        raise _RefusedError("ValidationException", "AMI Kiln lab: rules have no locks here")
    period = parameters.get("RetentionPeriod") or {}
    days = int(period.get("RetentionPeriodValue", 0))
    if period.get("RetentionPeriodUnit") != "DAYS" or not 1 <= days <= _MOST_DAYS:
        raise _RefusedError(
            "ValidationException", f"The retention period must be from 1 to {_MOST_DAYS} DAYS"
        )
    tags, excluded = (
        parameters.get("ResourceTags") or [],
        parameters.get("ExcludeResourceTags") or [],
    )
    if tags and excluded:
        raise _RefusedError("ValidationException", "A rule with tags excludes no tags")
    return Rule(
        id=rule_id or secrets.token_hex(6)[:11],
        kind=kind,
        days=days,
        description=parameters.get("Description") or "",
        tags=tags,
        excluded=excluded,
    )


def _as_asked(rule: Rule) -> Parameters:
    return {
        "ResourceType": rule.kind,
        "RetentionPeriod": {"RetentionPeriodValue": rule.days, "RetentionPeriodUnit": "DAYS"},
        "Description": rule.description,
        "ResourceTags": rule.tags,
        "ExcludeResourceTags": rule.excluded,
    }


def _shown(rule: Rule, region: str) -> Parameters:
    return _as_asked(rule) | {
        "Identifier": rule.id,
        "Status": "available",
        "LockState": "unlocked",
        "RuleArn": f"arn:aws:rbin:{region}:{DEFAULT_ACCOUNT_ID}:rule/{rule.id}",
    }
