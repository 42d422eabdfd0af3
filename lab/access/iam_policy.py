"""Judges a question (action, resource, context) by IAM policies.

Default deny; an explicit deny wins; a permissions boundary and a session's policy must allow too.
What the lab cannot tell (a condition key that it does not know, the resources of a call) never
allows, and denies where a Deny may fit.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic_policy-eval-basics.html
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lab.access import principals
from lab.access.conditions import Context, Holds, hold, matches
from lab.access.principals import ACCOUNT, ROLE, SELF, Caller

Effect = Literal["Allow", "Deny"]


@dataclass(frozen=True)
class Question:
    """One thing that IAM is asked about a call.

    `resource` is an ARN, `*` for an action that has none, None where the lab does not know it.
    """

    action: str
    resource: str | None
    context: Context


@dataclass(frozen=True)
class Policies:
    """The documents that decide about a key: its own, its boundary's, its session's."""

    identity: tuple[str, ...]
    boundary: str | None = None
    session: str | None = None


@dataclass(frozen=True)
class Attached:
    """The policy of a resource: of a bucket, a topic, a queue, a key, or the trust policy of a
    role. `alone`: without its allowance the policies of the caller are worth nothing."""

    document: str
    alone: bool = False


# The policy that a resource has about an action, by action and ARN; None without one.
Find = Callable[[str, str], "Attached | None"]


def refusal(
    policies: Policies,
    question: Question,
    caller: Caller | None = None,
    attached: Attached | None = None,
) -> str:
    """Why a question is answered with no, in the words of AWS's errors; "" when it is allowed."""
    kinds = [("identity-based policy", policies.identity)]
    kinds += [("permissions boundary", (policies.boundary,))] if policies.boundary else []
    kinds += [("session policy", (policies.session,))] if policies.session else []
    for kind, documents in kinds:
        for document in documents:
            verdict = _effect(document, "Deny", question)
            if verdict is not False:
                return f"with an explicit deny in a{'n' * (kind[0] == 'i')} {kind}" + _doubt(
                    verdict, question
                )
    granted = None
    if caller and attached:
        verdict, _ = _attached(attached.document, "Deny", question, caller)
        if verdict is not False:
            return "with an explicit deny in a resource-based policy" + _doubt(verdict, question)
        verdict, granted = _attached(attached.document, "Allow", question, caller)
        crosses = _account(question.resource) not in ("", caller.account)
        if granted is None and (attached.alone or crosses):
            doubt = _doubt(verdict, question)
            return f"because no resource-based policy allows the {question.action} action{doubt}"
        if crosses:
            granted = ACCOUNT
    if granted == SELF:
        return ""
    for kind, documents in kinds[1:] if granted == ROLE else kinds:
        verdicts = [_effect(document, "Allow", question) for document in documents]
        if True not in verdicts:
            doubt = _doubt(None if None in verdicts else False, question)
            return f"because no {kind} allows the {question.action} action{doubt}"
    return ""


def service_may_assume(trust: str, service: str) -> bool:
    """Whether a trust policy lets a service, such as ec2.amazonaws.com, assume its role."""
    question = Question("sts:AssumeRole", "*", Context({}))
    effects = {
        statement.get("Effect")
        for statement in _statements(trust)
        if principals.names_service(statement, service) and _fits(_whole(statement), question)
    }
    return effects == {"Allow"}


def _account(resource: str | None) -> str:
    """The account in an ARN; "" for one without."""
    parts = (resource or "").split(":", 5)
    return parts[4] if len(parts) == 6 else ""


def _doubt(verdict: Holds, question: Question) -> str:
    if verdict is not None:
        return ""
    what = "the resources of this call" if question.resource is None else "a condition of a policy"
    return f" (AMI Kiln lab: it does not judge {what}, and so does not allow it)"


def _attached(
    document: str, effect: Effect, question: Question, caller: Caller
) -> tuple[Holds, str | None]:
    """Whether the policy of a resource has a statement with that effect for the caller, and whom
    the narrowest one names."""
    result: Holds = False
    means: set[str] = set()
    for statement in _statements(document):
        meant = principals.named(statement, caller)
        if statement.get("Effect") != effect or meant is None:
            continue
        fits = _fits(_whole(statement), question)
        if fits:
            means.add(meant)
        elif fits is None:
            result = None
    kind = next((kind for kind in (SELF, ROLE, ACCOUNT) if kind in means), None)
    return (True if means else result), kind


def _whole(statement: dict[str, Any]) -> dict[str, Any]:
    """A statement of a trust policy has no resource: it means its role."""
    if "Resource" in statement or "NotResource" in statement:
        return statement
    return {**statement, "Resource": "*"}


def _effect(document: str, effect: Effect, question: Question) -> Holds:
    """Whether a document has a statement with that effect on the question."""
    result: Holds = False
    for statement in _statements(document):
        if statement.get("Effect") != effect:
            continue
        fits = _fits(statement, question)
        if fits:
            return True
        if fits is None:
            result = None
    return result


def _fits(statement: dict[str, Any], question: Question) -> Holds:
    action = _any(statement, "Action", question.action, question.context, case=False)
    if not action:
        return action
    if question.resource is None:
        patterns = _listed(statement.get("Resource", []))
        resource: Holds = True if "*" in patterns else None
    else:
        resource = _any(statement, "Resource", question.resource, question.context, case=True)
    if resource is False:
        return False
    condition = hold(statement.get("Condition", {}), question.context)
    if condition is False:
        return False
    return True if resource and condition else None


def _any(
    statement: dict[str, Any], element: str, text: str, context: Context, *, case: bool
) -> Holds:
    """Whether an element of a statement, or its Not… form, fits a text."""
    negative = f"Not{element}" in statement
    patterns = _listed(statement.get(f"Not{element}" if negative else element, []))
    results = [matches(pattern, text, context, case=case) for pattern in patterns]
    if element == "Action" and text.endswith(":"):
        results = [_of_unnamed(pattern, text, context) for pattern in patterns]
    if True in results:
        return not negative
    return None if None in results else negative


def _of_unnamed(pattern: str, service: str, context: Context) -> Holds:
    """Whether a pattern fits a call of which the lab knows only the service, `ec2:`."""
    of, _, name = pattern.partition(":")
    if pattern != "*" and not matches(of, service[:-1], context, case=False):
        return False
    return True if pattern == "*" or name == "*" else None


def _listed(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


@functools.lru_cache(maxsize=256)
def _statements(document: str) -> tuple[dict[str, Any], ...]:
    statements = json.loads(document).get("Statement", [])
    return tuple(statements) if isinstance(statements, list) else (statements,)
