"""A combination → its clashes: every rule asked once, rules on instance types once per target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import kiln.rules  # noqa: F401 (its modules register the rules)
from kiln.facts import InstanceType
from kiln.rules.combination import Combination
from kiln.rules.registry import CHECKS, INSTANCE_CHECKS, Rule, Verdict, rules


@dataclass(frozen=True)
class Clash:
    """A rule that did not pass, and what it said. `target` is the instance type it is about."""

    rule: Rule
    verdict: Verdict
    target: InstanceType | None = None

    @property
    def blocks(self) -> bool:
        """Does the combination not work, sure or not? (Advice and warnings do not block.)"""
        return (self.verdict.level or self.rule.level) == "error" and not self.verdict.advice

    @property
    def certain(self) -> bool:
        """Do confirmed facts stand behind it?"""
        return not self.verdict.unsure and self.rule.confidence != "memory"


def clashes(combination: Combination) -> list[Clash]:
    """All clashes, those on instance types for every target of the combination."""
    found = [
        Clash(rules()[rule_id], verdict)
        for rule_id, check in CHECKS.items()
        for verdict in check(combination)
    ]
    for target in combination.targets:
        found += on_instance(combination, target)
    order = list(rules())
    return sorted(found, key=lambda clash: order.index(clash.rule.id))


def on_instance(combination: Combination, target: InstanceType) -> Iterator[Clash]:
    """The clashes of the combination on one instance type."""
    for rule_id, check in INSTANCE_CHECKS.items():
        for verdict in check(combination, target):
            yield Clash(rules()[rule_id], verdict, target)


def runs_on(combination: Combination, target: InstanceType) -> bool:
    """Does the combination work on that instance type, as far as known?"""
    return not any(clash.blocks for clash in on_instance(combination, target))
