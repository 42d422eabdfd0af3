"""The files that are rendered for an image, whichever component gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kiln.base.findings import Finding
from kiln.base.overlay import component_files, shown_path
from kiln.base.recipe import Recipe
from kiln.components.component import Step

RECIPE_JSON = "etc/kiln/recipe.json"
AGENT_ETC = "opt/aws/amazon-cloudwatch-agent/etc"
RULE = "rendered-files"


def installed_agent_files(recipe: Recipe) -> dict[str, str]:
    """The CloudWatch agent's configuration: path on the image → text."""
    if "cloudwatch-agent" not in recipe.components:
        return {}
    from kiln import telemetry

    settings = telemetry.Telemetry(**recipe.telemetry)
    texts = telemetry.agent_files(settings, recipe.driver, recipe.cloudwatch_agent)
    return {f"{AGENT_ETC}/{path}": text for path, text in texts.items()}


def rendered_names(recipe: Recipe, steps: Sequence[Step]) -> frozenset[str]:
    """The names of all files that are rendered for an image."""
    own = (name for step in steps for name in step.files)
    return frozenset((RECIPE_JSON, *own, *installed_agent_files(recipe)))


def name_problems(names: frozenset[str], steps: Sequence[Step]) -> Iterator[Finding]:
    """Files of a component that have the name of a folder which another file is in."""
    for step in steps:
        for name in step.files:
            inside = min((other for other in names if other.startswith(f"{name}/")), default="")
            if inside:
                file = component_files(step.name)[-1]
                yield Finding(
                    "error",
                    RULE,
                    f"files(recipe) names {name!r}, a folder that {inside} needs",
                    "give the file another name",
                    file=shown_path(file),
                    line=1,
                )
