"""Systems Manager's agent."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, download


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """Amazon's package, if the distribution has none."""
    return download(recipe, "SSM_AGENT")


COMPONENT = Component(
    name="ssm-agent",
    what="Systems Manager agent: Amazon Linux's package, Ubuntu's snap, Amazon's package on Debian",
    downloads=downloads,
)
