"""The rows of the matrix that serve an instance type, best first, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from typing import Any

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.compat.judge import Clash, clashes
from kiln.compat.rules.combination import Combination, recipe_combination
from kiln.facts import InstanceType


def rows_for(
    instance_type: str, recipes: Iterable[Recipe], *, today: date | None = None
) -> dict[str, Any]:
    """The rows for an instance type.

    Returns `{"instance_type": …, "gpus": "8 × NVIDIA H100 80GB HBM3", "serves": [{"row", "reasons",
    "warnings"} best first], "does_not": [{"row", "reasons"}]}`. The best row has a driver and a
    distribution that still get fixes, then the fewest warnings, then EFA if the type has it, then
    the driver with the latest end of life. Components that only other types need cause no warning.

    Raises KilnError (exit status 2) if `instance_type` is not a known GPU instance type.
    """
    wanted = facts.instance(instance_type)
    serves, does_not = [], []
    for recipe in recipes:
        plain = recipe_combination(recipe, today or date.today(), instance_types=())
        on_type = replace(plain, instance_types=(wanted,), build_instances=())
        clashes_here = [clash for clash in clashes(on_type) if not clash.rule.spare]
        against = [clash for clash in clashes_here if clash.blocks]
        if against:
            reasons = [clash.verdict.whole for clash in against]
            does_not.append({"row": recipe.name, "reasons": list(dict.fromkeys(reasons))})
        else:
            entry = {
                "row": recipe.name,
                "reasons": _reasons(on_type, wanted),
                "warnings": [clash.verdict.whole for clash in clashes_here],
            }
            serves.append((_rank(on_type, wanted, clashes_here), entry))
    return {
        "instance_type": wanted.type,
        "gpus": _gpus(wanted),
        "serves": [entry for _, entry in sorted(serves, key=lambda pair: pair[0])],
        "does_not": does_not,
    }


def which_text(answer: dict[str, Any]) -> str:
    """The answer for a person, one row per paragraph."""
    lines = [f"{answer['instance_type']}: {answer['gpus']}"]
    for place, entry in enumerate(answer["serves"], 1):
        lines.append(f"{place}. {entry['row']}")
        lines += [f"     {reason}" for reason in entry["reasons"]]
        lines += [f"     but: {warning}" for warning in entry["warnings"]]
    if not answer["serves"]:
        lines.append("no row of the matrix serves it")
    for entry in answer["does_not"]:
        lines.append(f"-  {entry['row']}")
        lines += [f"     not: {reason}" for reason in entry["reasons"]]
    return "\n".join(lines)


def _rank(
    c: Combination, instance_type: InstanceType, clashes_here: list[Clash]
) -> tuple[Any, ...]:
    end = c.branch.end_of_life if c.branch else None
    without_efa = instance_type.efa and not c.efa
    ended = sum(clash.rule.ended for clash in clashes_here)
    return (
        ended,
        len(clashes_here),
        without_efa,
        -(end or date.max).toordinal(),
        c.flavor != "base",
    )


def _gpus(instance_type: InstanceType) -> str:
    if instance_type.fractional:
        return f"a fraction of one {instance_type.product} ({instance_type.gpu_memory_mib} MiB)"
    return f"{instance_type.gpu_count} × {instance_type.product}"


def _reasons(c: Combination, instance_type: InstanceType) -> list[str]:
    """Why the row suits this type, and what it lacks."""
    module = (
        f"both modules baked, {instance_type.prefers} loaded"
        if len(c.modules) > 1
        else c.kernel_module
    )
    reasons = [f"driver {c.driver} ({module}) drives {instance_type.ec2_name}"]
    if c.branch and c.branch.end_of_life and not c.branch.ended(c.today):
        reasons[0] += f"; branch {c.branch.name} ({c.branch.kind}) gets fixes to "
        reasons[0] += str(c.branch.end_of_life)
    if instance_type.nvswitch and c.fabric_manager:
        reasons.append("fabric manager for its NVSwitch")
    if instance_type.imex and c.imex:
        reasons.append("IMEX for NVLink across hosts")
    if instance_type.efa and c.efa:
        reasons.append(f"EFA {c.efa} for its EFA interfaces ({instance_type.efa_interfaces})")
    elif instance_type.efa:
        reasons.append(f"no EFA software for its EFA interfaces ({instance_type.efa_interfaces})")
    return reasons
