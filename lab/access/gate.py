"""Refuses calls that the policies of a key's holder do not allow, as the service would.

Every key is judged but the lab's own, whose holder is root on this machine anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from lab.access import iam_policy, questions, refusals
from lab.access.iam_policy import Find, Policies
from lab.access.of_ec2 import Look
from lab.access.principals import Caller

log = logging.getLogger("lab.access")

# Whose a key is, and what decides about it.
Holders = Callable[[str], "tuple[Caller, Policies] | None"]
# Always allowed, whatever a policy says:
# https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html
_FREE = ("sts:GetCallerIdentity",)


def refusal(
    key_id: str,
    environ: Mapping[str, Any],
    body: bytes,
    holders: Holders,
    look: Look,
    attached: Find,
) -> refusals.Answer | None:
    """The answer to a request that is not allowed; None for one that is.

    moto keeps policies that AWS would not, and bodies may be of any form: what cannot be judged is
    denied.
    """
    try:
        # Without a holder, it was deleted since: the signature's check said who it was.
        nobody = Caller("unknown", "", "", "", ""), Policies(())
        caller, policies = holders(key_id) or nobody
        listed = questions.questions(environ, body, caller, look)
        for question in listed:
            if question.action in _FREE:
                continue
            theirs = attached(question.action, question.resource) if question.resource else None
            why = iam_policy.refusal(policies, question, caller, theirs)
            if why:
                on = f" on resource: {question.resource}" if question.resource else ""
                action = question.action
                text = f"User: {caller.arn} is not authorized to perform: {action}{on} {why}"
                log.info("denied: %s", text)
                # The service that was called refuses a role that must not be passed to it, too.
                service = listed[0].action.partition(":")[0]
                return refusals.denied(service, text, environ, body)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        text = f"AMI Kiln lab: a policy, or the request, cannot be read: {type(error).__name__}"
        log.warning("denied: %s: %s", text, error)
        return refusals.denied(questions.service(environ), text, environ, body)
    return None
