"""Who calls, and whom a policy of a resource names.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_principal.html
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic_policy-eval-denyallow.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Whom a statement names. ACCOUNT leaves the decision to the policies of the account's users and
# roles; an allowance for ROLE (or everybody) is limited by boundaries and session policies, one for
# SELF (a user, a single session of a role) by nothing.
ACCOUNT, ROLE, SELF = "account", "role", "self"


@dataclass(frozen=True)
class Caller:
    """Whose key a request is signed with. `instance` and `address` are of the one that has it by
    IMDS: its calls come to the API by the lab's own address."""

    arn: str
    principal: str
    kind: str
    user_id: str
    account: str
    name: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    instance: str = ""
    address: str = ""


def named(statement: dict[str, Any], caller: Caller) -> str | None:
    """Whom a statement means, when the caller is among them: SELF, ROLE or ACCOUNT, else None."""
    if "NotPrincipal" in statement:
        return None if _narrowest(statement["NotPrincipal"], caller) else ROLE
    return _narrowest(statement.get("Principal"), caller)


def names_service(statement: dict[str, Any], service: str) -> bool:
    """Whether a statement's principal is a service, such as ec2.amazonaws.com, or everybody."""
    return bool({service, "*"} & set(_listed(statement.get("Principal"), "Service")))


def _narrowest(principal: Any, caller: Caller) -> str | None:
    kinds = {_kind(text, caller) for text in _listed(principal, "AWS")}
    return next((kind for kind in (SELF, ROLE, ACCOUNT) if kind in kinds), None)


def _listed(principal: Any, kind: str) -> Iterator[str]:
    if isinstance(principal, str):
        yield principal
        return
    named_ = (principal or {}).get(kind, [])
    yield from (named_ if isinstance(named_, list) else [named_])


def _kind(text: str, caller: Caller) -> str | None:
    if text == "*":
        return ROLE
    if text in (caller.account, f"arn:aws:iam::{caller.account}:root"):
        return ACCOUNT
    if text == caller.arn:
        return SELF
    return ROLE if text == caller.principal else None
