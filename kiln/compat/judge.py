"""A combination → its clashes. Rules about instance types run once per type, all others once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import kiln.compat.rules  # noqa: F401 (its modules register the rules)
from kiln import facts
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import (
    BY_INSTANCE_TYPE,
    CHECKS,
    INSTANCE_CHECKS,
    Objection,
    Rule,
    rules,
)
from kiln.facts import InstanceType


@dataclass(frozen=True)
class Clash:
    """A rule that failed, with its verdict, and the instance type if the rule is about one."""

    rule: Rule
    verdict: Objection
    instance_type: InstanceType | None = None

    @property
    def blocks(self) -> bool:
        """Does the combination fail, even if uncertain? Advice and warnings do not block."""
        return (self.verdict.level or self.rule.level) == "error" and not self.verdict.advice

    @property
    def certain(self) -> bool:
        """Does it rest on confirmed facts?"""
        return self.rule.confirmed and not self.verdict.unsure


def general_clashes(combination: Combination) -> list[Clash]:
    """The clashes that are the same whatever the instance types are."""
    return list(_whole(combination, CHECKS.keys() - BY_INSTANCE_TYPE))


def clashes(combination: Combination, general: Sequence[Clash] | None = None) -> list[Clash]:
    """All clashes, in the order of the rules, for all instance types of the combination.

    `general` are the combination's general clashes, if the caller has them already.
    """
    all_clashes = list(general_clashes(combination) if general is None else general)
    all_clashes += _whole(combination, BY_INSTANCE_TYPE)
    for instance_type in combination.instance_types:
        all_clashes += clashes_on_instance(combination, instance_type)
    order = {rule_id: place for place, rule_id in enumerate(rules())}
    return sorted(all_clashes, key=lambda clash: order[clash.rule.id])


def served(combination: Combination) -> list[InstanceType]:
    """All known instance types that the combination works on, whichever it names itself.

    A clash about a type counts even if it is uncertain.
    """
    if any(clash.blocks and clash.certain for clash in general_clashes(combination)):
        return []
    return [
        instance_type
        for instance_type in facts.instances().values()
        if _runs_on(combination, instance_type)
    ]


def _runs_on(combination: Combination, instance_type: InstanceType) -> bool:
    if any(clash.blocks for clash in clashes_on_instance(combination, instance_type)):
        return False
    by_type = _whole(replace(combination, instance_types=(instance_type,)), BY_INSTANCE_TYPE)
    return not any(clash.blocks and clash.certain for clash in by_type)


def _whole(combination: Combination, rule_ids: Iterable[str]) -> Iterator[Clash]:
    for rule_id in rule_ids:
        for verdict in CHECKS[rule_id](combination):
            yield Clash(rules()[rule_id], verdict)


def clashes_on_instance(combination: Combination, instance_type: InstanceType) -> Iterator[Clash]:
    """The clashes of the combination on one instance type."""
    for rule_id, check in INSTANCE_CHECKS.items():
        for verdict in check(combination, instance_type):
            yield Clash(rules()[rule_id], verdict, instance_type)
