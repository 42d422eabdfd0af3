"""Which lines serve an instance type, best first, and what their telemetry costs there."""

from __future__ import annotations

from collections.abc import Sequence

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.catalogue.model import ServedType
from kiln.compat.which import judged_rows, rows_on
from kiln.telemetry.pricing import monthly_cost
from kiln.telemetry.settings import Telemetry


def served_types(
    recipes: Sequence[Recipe], lines: Sequence[str], types: Sequence[str] | None = None
) -> tuple[ServedType, ...]:
    """An entry for each instance type that a recipe serves; `lines` gives the indices."""
    offered = [kind.type for kind in facts.instances().values() if kind.offered]
    index = {line: place for place, line in enumerate(lines)}
    by_name = {recipe.name: recipe for recipe in recipes}
    rows = judged_rows(recipes)
    by_type = []
    for name in types if types is not None else offered:
        answer = rows_on(facts.instance(name), rows)
        served = tuple(
            (
                index[by_name[entry["row"]].channel_line],
                len(entry["warnings"]),
                _telemetry(by_name[entry["row"]], name),
            )
            for entry in answer["serves"]
        )
        if served:
            by_type.append(ServedType(name, answer["gpus"], served))
    return tuple(by_type)


def _telemetry(recipe: Recipe, instance_type: str) -> float | None:
    """US dollars a month; None for an image that sends no metrics."""
    if "cloudwatch-agent" not in recipe.components:
        return None
    return float(monthly_cost(instance_type, Telemetry(**recipe.telemetry))["usd_per_month"])
