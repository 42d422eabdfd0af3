"""The CloudWatch agent. Its configuration is made in kiln/telemetry."""

from __future__ import annotations

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, download, needed


def environment(recipe: Recipe) -> dict[str, str]:
    """The agent's version."""
    return {"CLOUDWATCH_AGENT_VERSION": needed(recipe.cloudwatch_agent, "cloudwatch_agent", recipe)}


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """The agent's package, its detached signature and its signing key."""
    agent = needed(recipe.cloudwatch_agent, "cloudwatch_agent", recipe)
    builds = facts.table("services")["cloudwatch_agent"]["builds"]
    build = builds[agent]["build"] if agent in builds else agent
    return (
        *download(recipe, "CLOUDWATCH_AGENT", agent, build=build),
        *download(recipe, "CLOUDWATCH_AGENT_SIGNATURE", agent, build=build),
        *download(recipe, "CLOUDWATCH_AGENT_KEY"),
    )


COMPONENT = Component(
    name="cloudwatch-agent",
    what="CloudWatch agent with GPU metrics and the Xid event log",
    needs="cloudwatch_agent",
    keys={"CLOUDWATCH_AGENT_KEY_FINGERPRINT": "cloudwatch-agent"},
    environment=environment,
    downloads=downloads,
)
