"""The rows of the matrix that serve an instance type or a purpose, best first, and why the others
do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from kiln import facts
from kiln.base import vocabulary
from kiln.base.recipe import Recipe
from kiln.compat import Case
from kiln.compat.engine import Clash, clashes, general_clashes, working_types
from kiln.facts import InstanceType

# A row without instance types, and its clashes that are the same on every one.
JudgedRow = tuple[Case, list[Clash]]
# A text of a table, or a text and its style.
Cell = str | tuple[str, str]


def judged_rows(recipes: Iterable[Recipe], today: date | None = None) -> list[JudgedRow]:
    """The rows, for several questions with rows_on."""
    cases = [Case(recipe, today or vocabulary.today()) for recipe in recipes]
    return [(case, general_clashes(case)) for case in cases]


def rows_for(
    instance_type: str | None,
    recipes: Iterable[Recipe],
    flavor: str | None = None,
    today: date | None = None,
) -> dict[str, Any]:
    """Return which of the rows serve an instance type, or any without one.

    Returns `{"instance_type": … or None, "gpus": "8 × NVIDIA H100 80GB HBM3" or None, "serves":
    [{"row", "reasons", "warnings"} best first], "does_not": [{"row", "reasons"}]}`. The best row
    has a driver and a distribution that still get fixes, then the fewest warnings, then EFA if the
    type has it, then the driver with the latest end of life; unless a `flavor` was asked for, base
    comes first. Components that only other types need cause no warning.

    Exit status 2 if there is no such GPU instance type.
    """
    wanted = facts.instance(instance_type) if instance_type else None
    return rows_on(wanted, judged_rows(recipes, today), flavor)


def rows_on(
    wanted: InstanceType | None, rows: Iterable[JudgedRow], flavor: str | None = None
) -> dict[str, Any]:
    """Return the answer of rows_for for judged rows."""
    serves, does_not = [], []
    for judged, general in rows:
        case = replace(judged, types=(wanted,) if wanted else ())
        found = [clash for clash in clashes(case, general) if not clash.rule.spare]
        against = [clash.text for clash in found if clash.blocks]
        entry: dict[str, Any] = {"row": case.recipe.name}
        if against:
            does_not.append({**entry, "reasons": list(dict.fromkeys(against))})
        else:
            warnings = [clash.text for clash in found]
            entry |= {"reasons": _reasons(case, wanted), "warnings": warnings}
            serves.append((_rank(case, wanted, found, flavor), entry))
    return {
        "instance_type": wanted.type if wanted else None,
        "gpus": _gpus(wanted) if wanted else None,
        "serves": [entry for _, entry in sorted(serves, key=lambda pair: pair[0])],
        "does_not": does_not,
    }


HEADINGS = ("AMI", "driver", "module", "EFA", "fixes until", "serves")


def table_rows(answer: dict[str, Any], recipes: Iterable[Recipe]) -> list[list[Cell]]:
    """Return the answer as rows of a table, one for each recipe."""
    known, rows = {recipe.name: recipe for recipe in recipes}, []
    for entry in (*answer["serves"], *answer["does_not"]):
        recipe = known[entry["row"]]
        branch = Case(recipe, vocabulary.today()).branch
        fixes = str((branch and branch.end_of_life) or "-")
        cells: list[Cell] = [recipe.name, recipe.driver, recipe.kernel_module]
        cells += [recipe.efa or "-", fixes]
        warnings = len(entry.get("warnings", ()))
        if "warnings" not in entry:
            rows.append([*cells, ("no", "dim")])
        elif warnings:
            rows.append([*cells, (f"yes, {warnings} warning{'s'[: warnings > 1]}", "yellow")])
        else:
            rows.append([*cells, ("yes", "green")])
    return rows


def which_text(answer: dict[str, Any]) -> str:
    """The reasons: a paragraph for each row that serves, one for each reason of those
    that do not."""
    lines = []
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
    return "\n".join(lines)


def _rank(
    case: Case, wanted: InstanceType | None, found: Sequence[Clash], flavor: str | None
) -> tuple[Any, ...]:
    end = case.branch.end_of_life if case.branch else None
    return (
        sum(clash.rule.ended for clash in found),
        len(found),
        # Without a type, more of the stack is better.
        not case.recipe.efa and (wanted is None or wanted.efa),
        # Nobody can say that an unknown end is late.
        -(end or date.min).toordinal(),
        # Whoever asks for no flavor wants the plain one.
        flavor is None and case.recipe.flavor != "base",
    )


def _gpus(kind: InstanceType) -> str:
    if kind.fractional:
        return f"a fraction of one {kind.product} ({kind.gpu_memory_mib} MiB)"
    return f"{kind.gpu_count} × {kind.product}"


def _reasons(case: Case, kind: InstanceType | None) -> list[str]:
    """Return why the row suits this type, and what it lacks; without a type, what it serves."""
    recipe, branch = case.recipe, case.branch
    module: str = recipe.kernel_module
    if module == "both":
        module = "both modules baked" + (f", {kind.prefers} loaded" if kind else "")
    drives = f" drives {kind.ec2_name}" if kind else ""
    reasons = [f"driver {recipe.driver} ({module}){drives}"]
    if branch and branch.end_of_life and not branch.ended(case.today):
        reasons[0] += f"; branch {branch.name} ({branch.kind}) gets fixes to {branch.end_of_life}"
    if kind is None:
        families = dict.fromkeys(each.type.split(".")[0] for each in working_types(case))
        return [*reasons, f"serves {', '.join(families) or 'no instance type'}"]
    if kind.nvswitch and case.fabric_manager:
        reasons.append("fabric manager for its NVSwitch")
    if kind.imex and recipe.imex:
        reasons.append("IMEX for NVLink across hosts")
    if kind.efa:
        software = f"EFA {recipe.efa}" if recipe.efa else "no EFA software"
        reasons.append(f"{software} for its EFA interfaces ({kind.efa_interfaces})")
    return reasons
