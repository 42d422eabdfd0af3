"""Which rules there are, and the decorators that tie a function to a rule's id."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from kiln import facts
from kiln.compat.rules.combination import Combination
from kiln.facts import InstanceType, table


@dataclass(frozen=True)
class Rule:
    """A rule as rules.yaml describes it; `source` has its short names written out.

    `about` names the fields of a recipe that it judges, the likeliest culprit first; `moves` the
    fields whose change can resolve it; `limits` holds the rule's own thresholds. `confirmed` is
    false where nobody confirmed the fact that the rule itself states. `spare` marks a rule about
    what an image has but does not need, `ended` one about what gets no more fixes.
    """

    id: str
    level: str
    what: str
    example: str
    confirmed: bool
    source: str
    about: tuple[str, ...]
    limits: dict[str, Any]
    moves: tuple[str, ...]
    spare: bool
    ended: bool


@dataclass(frozen=True)
class Verdict:
    """One clash: what clashes in few words, what to do about it, and why it matters.

    `unsure`: the fact behind it is unconfirmed, so it may only warn; `advice`: it works, but a
    person should know, so it warns too and blocks nothing.
    """

    message: str
    hint: str = ""
    why: str = ""
    unsure: bool = False
    advice: bool = False
    level: str | None = None

    @property
    def whole(self) -> str:
        """Message and reason in one line."""
        return f"{self.message}: {self.why}" if self.why else self.message


Check = Callable[[Combination], Iterable[Verdict]]
InstanceCheck = Callable[[Combination, InstanceType], Iterable[Verdict]]

CHECKS: dict[str, Check] = {}
INSTANCE_CHECKS: dict[str, InstanceCheck] = {}
BY_TARGET: set[str] = set()


@cache
def rules() -> dict[str, Rule]:
    """All rules by id, in the order of rules.yaml."""
    names = table("rules")["sources"]
    return {
        entry["id"]: Rule(
            id=entry["id"],
            level=entry["level"],
            what=entry["what"],
            example=str(entry["example"]),
            confirmed=facts.confirmed(entry),
            source=facts.full_source(entry["source"], names),
            about=tuple(entry["about"]),
            limits=entry.get("limits", {}),
            moves=tuple(entry.get("moves", ())),
            spare=entry.get("spare", False),
            ended=entry.get("ended", False),
        )
        for entry in table("rules")["rules"]
    }


def rule(rule_id: str, *, by_target: bool = False) -> Callable[[Check], Check]:
    """The function is the check of that rule on a whole combination. `by_target`: its verdict
    depends on the targets, so it is asked again for each type that may be served."""

    def register(check: Check) -> Check:
        CHECKS[rule_id] = check
        if by_target:
            BY_TARGET.add(rule_id)
        return check

    return register


def instance_rule(rule_id: str) -> Callable[[InstanceCheck], InstanceCheck]:
    """The function is the check of that rule on a combination and one instance type."""

    def register(check: InstanceCheck) -> InstanceCheck:
        INSTANCE_CHECKS[rule_id] = check
        return check

    return register
