"""The system and its services: package snapshot, kernel, settings, agents, what ends a bake."""

from __future__ import annotations

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.base.templates import render
from kiln.components.component import (
    Component,
    Download,
    download,
    operating_system,
    packages,
    repository,
)


def _snapshot_files(recipe: Recipe) -> dict[str, str]:
    """dnf's variable that chooses the release, or the list of package sources for the bake."""
    service, snapshot = facts.package_snapshots(recipe.distro.id), recipe.package_snapshot or ""
    if service is None:
        return {}
    if service.kind == "releasever":
        return {"etc/dnf/vars/releasever": f"{snapshot}\n"}
    lines = service.lines(recipe.distro.id, snapshot)
    path = "etc/apt/sources.list.d/kiln-package-snapshot.list"
    return {path: "".join(f"{line}\n" for line in lines)}


PACKAGE_SNAPSHOT = Component(
    name="package-snapshot",
    what="the distribution's packages as of the row's package_snapshot",
    needs="package_snapshot",
    optional=False,
    version="PACKAGE_SNAPSHOT",
    files=_snapshot_files,
)

KERNEL = Component(
    name="kernel",
    what="current packages; the kernel that will boot, its headers and compiler",
    optional=False,
    reboots=True,
    packages={
        # Only for a parent AMI without a kernel, as in the lab.
        "KERNEL_DEFAULT_PACKAGE": "kernel",
        "KERNEL_COMPILER_PACKAGE": "kernel-compiler",
        "KERNEL_OS_PACKAGES": "kernel-tools",
    },
    environment=lambda recipe: {"KERNEL_PACKAGE": recipe.kernel or ""},
)


def _tuning_files(recipe: Recipe) -> dict[str, str]:
    """The kernel's settings, the limits of logins and those of services."""
    # Only the soft limit: a program may raise it up to the hard one, which systemd sets higher
    # (524288). Before systemd 240, on Amazon Linux 2, that one is 4096.
    nofile = "-" if recipe.distro.id == "al2" else "soft"
    efa_on_debian = bool(recipe.efa) and recipe.distro.family == "debian"
    return {
        "etc/sysctl.d/60-kiln.conf": render("tuning/sysctl.conf.j2", efa_on_debian=efa_on_debian),
        "etc/security/limits.d/60-kiln.conf": render("tuning/limits.conf.j2", nofile=nofile),
        "etc/systemd/system.conf.d/60-kiln.conf": render("tuning/system.conf.j2"),
    }


TUNING = Component(
    name="tuning",
    what="locked memory, open files and kernel settings for EFA and NCCL",
    files=_tuning_files,
)


def _lustre_environment(recipe: Recipe) -> dict[str, str]:
    """Return the place of the client's packages: a topic of Amazon Linux 2's extras, or FSx's
    repository, which has Ubuntu's codenames only."""
    ubuntu = operating_system(recipe) == "ubuntu"
    suite = str(facts.distro(recipe.distro.id).get("codename", "")) if ubuntu else ""
    return {
        "LUSTRE_TOPIC": facts.table("packages")["lustre"]["topics"].get(recipe.distro.id, ""),
        "LUSTRE_SUITE": suite,
        "LUSTRE_REPO_URL": repository(recipe, "LUSTRE_REPO_URL"),
    }


LUSTRE_CLIENT = Component(
    name="lustre-client",
    what="Lustre client, for FSx for Lustre",
    packages={"LUSTRE_OS_PACKAGES": "lustre-client"},
    urls=("LUSTRE_KEY",),
    keys={"LUSTRE_KEY_FINGERPRINT": "fsx-lustre"},
    environment=_lustre_environment,
)

VERSION_INFO = Component(
    name="version-info",
    what="/etc/kiln/version-info.json, the list of what is on the image",
    optional=False,
)

CLEANUP = Component(
    name="cleanup",
    what="removal of keys, identities, histories, caches and cloud-init state",
    optional=False,
)

HYGIENE = Component(
    name="hygiene",
    what="check that the clean-up left nothing behind",
    optional=False,
)


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
