"""The rows of the matrix that serve an instance type or a purpose, best first, and why the others
do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from kiln import facts
from kiln.base import times, vocabulary
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.recipe import Recipe
from kiln.compat.judge import Clash, clashes, general_clashes, served
from kiln.compat.rules.combination import Combination, recipe_combination
from kiln.facts import InstanceType


@dataclass(frozen=True)
class JudgedRow:
    """A row with what is the same on every instance type: its combination and the general clashes,
    without the instance types that bake it."""

    name: str
    combination: Combination
    general: list[Clash]


def judged_rows(recipes: Iterable[Recipe], today: date | None = None) -> list[JudgedRow]:
    """The rows, for several questions with rows_on."""
    rows = []
    for recipe in recipes:
        plain = recipe_combination(
            recipe, today or times.today(), instance_types=(), build_instances=()
        )
        rows.append(JudgedRow(recipe.name, plain, general_clashes(plain)))
    return rows


def rows_for(
    instance_type: str | None,
    recipes: Iterable[Recipe],
    *,
    distro: str | None = None,
    flavor: str | None = None,
    arch: str | None = None,
    today: date | None = None,
) -> dict[str, Any]:
    """The rows for an instance type, or for a distribution, flavour and processor, or both.

    Returns `{"instance_type": … or None, "gpus": "8 × NVIDIA H100 80GB HBM3" or None, "serves":
    [{"row", "reasons", "warnings"} best first], "does_not": [{"row", "reasons"}], "left_out":
    number of rows that are not of `distro`, `flavor` and `arch`}`. The best row has a driver and a
    distribution that still get fixes, then the fewest warnings, then EFA if the type has it, then
    the driver with the latest end of life. Components that only other types need cause no warning.

    Raises KilnError (exit status 2) if `instance_type` is not a known GPU instance type, or if
    there is no such distribution, flavour or processor.
    """
    criteria = {"distro": distro, "flavor": flavor, "arch": arch}
    _require_existing(criteria)
    wanted = facts.instance(instance_type) if instance_type else None
    every = list(recipes)
    fitting = [recipe for recipe in every if _is(recipe, criteria)]
    answer = rows_on(wanted, judged_rows(fitting, today), flavor)
    return {**answer, "left_out": len(every) - len(fitting)}


def rows_on(
    wanted: InstanceType | None, rows: Iterable[JudgedRow], flavor: str | None = None
) -> dict[str, Any]:
    """The answer of rows_for without `left_out`: which of the rows serve an instance type."""
    serves, does_not = [], []
    for row in rows:
        on_type = replace(row.combination, instance_types=(wanted,) if wanted else ())
        clashes_here = [clash for clash in clashes(on_type, row.general) if not clash.rule.spare]
        against = [clash for clash in clashes_here if clash.blocks]
        if against:
            reasons = [clash.verdict.whole for clash in against]
            does_not.append({"row": row.name, "reasons": list(dict.fromkeys(reasons))})
        else:
            entry = {
                "row": row.name,
                "reasons": _reasons(on_type, wanted),
                "warnings": [clash.verdict.whole for clash in clashes_here],
            }
            serves.append((_rank(on_type, wanted, clashes_here, flavor), entry))
    return {
        "instance_type": wanted.type if wanted else None,
        "gpus": _gpus(wanted) if wanted else None,
        "serves": [entry for _, entry in sorted(serves, key=lambda pair: pair[0])],
        "does_not": does_not,
    }


def _require_existing(criteria: dict[str, str | None]) -> None:
    values = {
        "distro": facts.distro_names(with_parents=True),
        "flavor": vocabulary.FLAVORS,
        "arch": vocabulary.ARCHES,
    }
    for name, value in criteria.items():
        if value is not None and value not in values[name]:
            raise KilnError(
                f"--{name} {value}: there is none to build on",
                hint=did_you_mean(value, values[name]),
            )


def _is(recipe: Recipe, criteria: dict[str, str | None]) -> bool:
    has = {"distro": recipe.distro.id, "flavor": recipe.flavor, "arch": recipe.arch}
    return all(value in (None, has[name]) for name, value in criteria.items())


def which_text(answer: dict[str, Any]) -> str:
    """The answer for a person: a paragraph for each row that serves, one for each reason of those
    that do not."""
    lines = [f"{answer['instance_type']}: {answer['gpus']}"] if answer["instance_type"] else []
    for place, entry in enumerate(answer["serves"], 1):
        lines.append(f"{place}. {entry['row']}")
        lines += [f"     {reason}" for reason in entry["reasons"]]
        lines += [f"     but: {warning}" for warning in entry["warnings"]]
    if not answer["serves"]:
        lines.append("no row of the matrix serves it")
    reasons: dict[tuple[str, ...], list[str]] = {}
    for entry in answer["does_not"]:
        reasons.setdefault(tuple(entry["reasons"]), []).append(entry["row"])
    for why, rows in reasons.items():
        lines += [f"-  {row}" for row in rows]
        lines += [f"     not: {reason}" for reason in why]
    if answer["left_out"]:
        lines.append(f"{answer['left_out']} rows are of another distribution, flavour or processor")
    return "\n".join(lines)


def _rank(
    c: Combination,
    instance_type: InstanceType | None,
    clashes_here: list[Clash],
    flavor: str | None,
) -> tuple[Any, ...]:
    end = c.branch.end_of_life if c.branch else None
    # Without a type, more of the stack is better.
    without_efa = not c.efa and (instance_type is None or instance_type.efa)
    ended = sum(clash.rule.ended for clash in clashes_here)
    return (
        ended,
        len(clashes_here),
        without_efa,
        # Nobody can say that an unknown end is late.
        -(end or date.min).toordinal(),
        # Whoever asks for no flavour wants the plain one.
        flavor is None and c.flavor != "base",
    )


def _gpus(instance_type: InstanceType) -> str:
    if instance_type.fractional:
        return f"a fraction of one {instance_type.product} ({instance_type.gpu_memory_mib} MiB)"
    return f"{instance_type.gpu_count} × {instance_type.product}"


def _reasons(c: Combination, instance_type: InstanceType | None) -> list[str]:
    """Why the row suits this type, and what it lacks; without a type, what it serves."""
    module = c.kernel_module
    if len(c.modules) > 1:
        module = "both modules baked"
        module += f", {instance_type.prefers} loaded" if instance_type else ""
    drives = f" drives {instance_type.ec2_name}" if instance_type else ""
    reasons = [f"driver {c.driver} ({module}){drives}"]
    if c.branch and c.branch.end_of_life and not c.branch.ended(c.today):
        reasons[0] += f"; branch {c.branch.name} ({c.branch.kind}) gets fixes to "
        reasons[0] += str(c.branch.end_of_life)
    if instance_type is None:
        families = dict.fromkeys(kind.type.split(".")[0] for kind in served(c) if kind.offered)
        return [*reasons, f"serves {', '.join(families) or 'no instance type'}"]
    if instance_type.nvswitch and c.fabric_manager:
        reasons.append("fabric manager for its NVSwitch")
    if instance_type.imex and c.imex:
        reasons.append("IMEX for NVLink across hosts")
    if instance_type.efa and c.efa:
        reasons.append(f"EFA {c.efa} for its EFA interfaces ({instance_type.efa_interfaces})")
    elif instance_type.efa:
        reasons.append(f"no EFA software for its EFA interfaces ({instance_type.efa_interfaces})")
    return reasons
