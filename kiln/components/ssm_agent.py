"""Systems Manager's agent."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, Environment, download, packages


def environment(recipe: Recipe) -> Environment:
    """The distribution's package, if it has one."""
    return {"SSM_AGENT_OS_PACKAGES": packages(recipe, "ssm-agent")}


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """Amazon's package, if the distribution has none."""
    return download(recipe, "SSM_AGENT")


COMPONENT = Component(
    name="ssm-agent",
    what="Systems Manager agent: Amazon Linux's package, Ubuntu's snap, Amazon's package on Debian",
    environment=environment,
    downloads=downloads,
)
