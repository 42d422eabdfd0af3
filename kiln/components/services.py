"""Services and agents: DCGM, container toolkit, CloudWatch, Systems Manager, the Xid monitor."""

from __future__ import annotations

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, download, packages, repository

DCGM = Component(
    name="dcgm",
    what="DCGM host engine",
    needs="dcgm",
    version="DCGM_VERSION",
    packages={"DCGM_PACKAGES": "dcgm"},
)

DCGM_EXPORTER = Component(
    name="dcgm-exporter",
    what="dcgm-exporter with our fields, on this machine's own address",
    needs="dcgm_exporter",
    version="DCGM_EXPORTER_VERSION",
    packages={"DCGM_EXPORTER_PACKAGES": "dcgm-exporter"},
)

# Who makes the runtime known to the container runtimes of a parent AMI; nvidia-ctk elsewhere.
# source: github:aws/amazon-ecs-ami scripts/al2023/gpu/enable-ecs-agent-gpu-support-al2023.sh
# @a2532d3503f2052a09ac18189b0de33918406db8; github:awslabs/amazon-eks-ami
# nodeadm/internal/containerd/runtime_config_nvidia.go @81fec2e895854f599974fe4d3d72f61c0a9aaffa
_REGISTRIES = {"ecs": "docker-runtimes.d", "eks": "nodeadm"}


def _toolkit_environment(recipe: Recipe) -> dict[str, str]:
    version = recipe.container_toolkit or ""
    return {
        "CONTAINER_RUNTIME_REGISTRY": _REGISTRIES.get(recipe.flavor, "nvidia-ctk"),
        "CONTAINER_TOOLKIT_VERSION": version,
        "CONTAINER_TOOLKIT_PACKAGES": packages(recipe, "container-toolkit", version),
        "CONTAINER_TOOLKIT_REPO_URL": repository(recipe, "CONTAINER_TOOLKIT_REPO_URL"),
    }


CONTAINER_TOOLKIT = Component(
    name="container-toolkit",
    what="NVIDIA container toolkit, configured for the runtimes on the image",
    needs="container_toolkit",
    urls=("CONTAINER_TOOLKIT_KEY",),
    keys={"CONTAINER_TOOLKIT_KEY_FINGERPRINT": "nvidia-container-toolkit"},
    environment=_toolkit_environment,
)


def _cloudwatch_downloads(recipe: Recipe) -> list[Download]:
    """The agent's package and its detached signature, in the folder of its build."""
    agent = recipe.cloudwatch_agent or ""
    builds = facts.table("services")["cloudwatch_agent"]["builds"]
    build = builds[agent]["build"] if agent in builds else agent
    variables = ("CLOUDWATCH_AGENT", "CLOUDWATCH_AGENT_SIGNATURE")
    return [each for env in variables for each in download(recipe, env, agent, build=build)]


CLOUDWATCH_AGENT = Component(
    name="cloudwatch-agent",
    what="CloudWatch agent with GPU metrics and the Xid event log",
    needs="cloudwatch_agent",
    version="CLOUDWATCH_AGENT_VERSION",
    urls=("CLOUDWATCH_AGENT_KEY",),
    keys={"CLOUDWATCH_AGENT_KEY_FINGERPRINT": "cloudwatch-agent"},
    downloads=_cloudwatch_downloads,
)

SSM_AGENT = Component(
    name="ssm-agent",
    what="Systems Manager agent: Amazon Linux's package, Ubuntu's snap, Amazon's package on Debian",
    packages={"SSM_AGENT_OS_PACKAGES": "ssm-agent"},
    urls=("SSM_AGENT",),
)

AWS_HW_MONITOR = Component(name="aws-hw-monitor", what="the Xid event parser and its unit")
