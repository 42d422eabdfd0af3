"""Which rows of the matrix serve an instance type: best first, with reasons for the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from typing import Any

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.compat.judge import Clash, clashes
from kiln.compat.rules.combination import Combination, of_recipe
from kiln.facts import InstanceType


def which(
    instance_type: str, recipes: Iterable[Recipe], *, today: date | None = None
) -> dict[str, Any]:
    """The rows for an instance type.

    Returns `{"instance_type": …, "gpus": "8 × NVIDIA H100 80GB HBM3", "serves": [{"row", "reasons",
    "warnings"} best first], "does_not": [{"row", "reasons"}]}`. Best is: driver and distribution
    get fixes, then fewest warnings, then EFA where the type has it, then the driver that gets
    fixes longest. What a row has for other types, and this one has no use for, is no warning.

    Raises KilnError (exit code 2) when it is no GPU instance type.
    """
    target = facts.instance(instance_type)
    serves, does_not = [], []
    for recipe in recipes:
        plain = of_recipe(recipe, today or date.today(), targets=())
        on_target = replace(plain, targets=(target,), build_instances=())
        found = [clash for clash in clashes(on_target) if not clash.rule.spare]
        against = [clash for clash in found if clash.blocks]
        if against:
            reasons = [clash.verdict.whole for clash in against]
            does_not.append({"row": recipe.name, "reasons": list(dict.fromkeys(reasons))})
        else:
            entry = {
                "row": recipe.name,
                "reasons": _reasons(on_target, target),
                "warnings": [clash.verdict.whole for clash in found],
            }
            serves.append((_rank(on_target, target, found), entry))
    return {
        "instance_type": target.type,
        "gpus": _gpus(target),
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


def _rank(c: Combination, target: InstanceType, found: list[Clash]) -> tuple[Any, ...]:
    end = c.branch.end_of_life if c.branch else None
    without_efa = target.efa and not c.efa
    unmended = sum(clash.rule.ended for clash in found)
    return (unmended, len(found), without_efa, -(end or date.max).toordinal(), c.flavor != "base")


def _gpus(target: InstanceType) -> str:
    if target.fractional:
        return f"a fraction of one {target.product} ({target.gpu_memory_mib} MiB)"
    return f"{target.gpu_count} × {target.product}"


def _reasons(c: Combination, target: InstanceType) -> list[str]:
    """What speaks for the row on this type, and what it lacks there."""
    module = (
        f"both modules baked, {target.prefers} loaded" if len(c.modules) > 1 else c.kernel_module
    )
    reasons = [f"driver {c.driver} ({module}) drives {target.ec2_name}"]
    if c.branch and c.branch.end_of_life and not c.branch.ended(c.today):
        reasons[0] += f"; branch {c.branch.name} ({c.branch.kind}) gets fixes to "
        reasons[0] += str(c.branch.end_of_life)
    if target.nvswitch and c.fabric_manager:
        reasons.append("fabric manager for its NVSwitch")
    if target.imex and c.imex:
        reasons.append("IMEX for NVLink across hosts")
    if target.efa and c.efa:
        reasons.append(f"EFA {c.efa} for its EFA interfaces ({target.efa_interfaces})")
    elif target.efa:
        reasons.append(f"no EFA software for its EFA interfaces ({target.efa_interfaces})")
    return reasons
