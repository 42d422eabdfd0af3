"""The rules, and the decorators that register a function as the check of a rule."""

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
    """A rule as in rules.yaml, with the short names in `source` expanded.

    `about` names the fields of a recipe that it judges, the likeliest culprit first; `moves` the
    fields whose change can resolve a clash; `limits` holds the rule's own thresholds. `confirmed`
    is false if the fact that the rule itself states is unconfirmed. `spare` marks a rule about
    something that an image has but does not need, `ended` one about something without further
    fixes.
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
class Objection:
    """One clash: what clashes, what to do about it, and why it matters.

    `unsure`: it rests on an unconfirmed fact and only warns. `advice`: the combination works, but a
    person should know; it only warns and blocks nothing. `source`: that of the fact itself, instead
    of the rule's.
    """

    message: str
    hint: str = ""
    why: str = ""
    unsure: bool = False
    advice: bool = False
    level: str | None = None
    source: str = ""

    @property
    def whole(self) -> str:
        """Message and reason in one line."""
        return f"{self.message}: {self.why}" if self.why else self.message


Check = Callable[[Combination], Iterable[Objection]]
InstanceCheck = Callable[[Combination, InstanceType], Iterable[Objection]]

CHECKS: dict[str, Check] = {}
INSTANCE_CHECKS: dict[str, InstanceCheck] = {}
BY_INSTANCE_TYPE: set[str] = set()


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


def rule(rule_id: str, *, by_instance_type: bool = False) -> Callable[[Check], Check]:
    """Register a function as the check of a rule on a whole combination.

    `by_instance_type`: the verdict depends on the combination's instance types, so the check runs
    again for each type that the combination may serve.
    """

    def register(check: Check) -> Check:
        CHECKS[rule_id] = check
        if by_instance_type:
            BY_INSTANCE_TYPE.add(rule_id)
        return check

    return register


def instance_rule(rule_id: str) -> Callable[[InstanceCheck], InstanceCheck]:
    """Register a function as the check of a rule on a combination and one instance type."""

    def register(check: InstanceCheck) -> InstanceCheck:
        INSTANCE_CHECKS[rule_id] = check
        return check

    return register
