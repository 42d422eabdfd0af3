"""The system: package snapshot, kernel, kernel settings, Lustre, and what ends a bake."""

from __future__ import annotations

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.components.component import Component, operating_system, repository


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
    what="current packages, the kernel that will boot and its headers, the compiler that built it",
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

_SYSCTLS = """\
# AMI Kiln: kernel settings of the component `tuning`.
# Data loaders map and watch many files. EKS has 524288 of both (github:awslabs/amazon-eks-ami
# templates/al2023/runtime/rootfs/etc/sysctl.conf @81fec2e895854f599974fe4d3d72f61c0a9aaffa); ours
# are what Ubuntu 24.04 (10-map-count.conf of procps 4.0.4-4ubuntu3) and a machine with much memory
# (fs/notify/inotify/inotify_user.c of Linux 5.11) have by themselves.
vm.max_map_count = 1048576
fs.inotify.max_user_watches = 1048576
fs.inotify.max_user_instances = 8192
kernel.pid_max = 4194304
# Our choice: a peer that died is noticed in minutes, not in two hours.
net.ipv4.tcp_keepalive_time = 600
net.ipv4.tcp_keepalive_intvl = 60
net.ipv4.tcp_keepalive_probes = 3
"""
_PTRACE = """\
# libfabric's EFA provider needs it to copy between the ranks of one host. It also lets every
# process of a user read the user's other processes. Amazon Linux has 0 already. Source:
# https://ofiwg.github.io/libfabric/main/man/fi_efa.7.html
kernel.yama.ptrace_scope = 0
"""
_LIMITS = """\
# AMI Kiln: limits of the component `tuning`. `*` leaves root out.
# EFA and NCCL register memory, which locks it. Source:
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
*    - memlock unlimited
root - memlock unlimited
# Our choice: NCCL opens a socket per peer and channel, and the usual limit is 1024.
{nofile}
"""
_NOFILE = "*    {0} nofile  65536\nroot {0} nofile  65536"
_SERVICES = """\
# AMI Kiln: what a service (a container runtime, a scheduler's daemon) passes on to its jobs;
# limits.d applies to logins only. Source: as in limits.d/60-kiln.conf
[Manager]
DefaultLimitMEMLOCK=infinity
"""


def _tuning_files(recipe: Recipe) -> dict[str, str]:
    """The kernel's settings, the limits of logins and those of services."""
    # Only the soft limit: a program may raise it up to the hard one, which systemd sets higher
    # (524288). Before systemd 240, on Amazon Linux 2, that one is 4096.
    nofile = _NOFILE.format("-" if recipe.distro.id == "al2" else "soft")
    ptrace = _PTRACE if recipe.efa and recipe.distro.family == "debian" else ""
    return {
        "etc/sysctl.d/60-kiln.conf": _SYSCTLS + ptrace,
        "etc/security/limits.d/60-kiln.conf": _LIMITS.format(nofile=nofile),
        "etc/systemd/system.conf.d/60-kiln.conf": _SERVICES,
    }


TUNING = Component(
    name="tuning",
    what="locked memory, open files and kernel settings for EFA and NCCL",
    files=_tuning_files,
)


def _lustre_environment(recipe: Recipe) -> dict[str, str]:
    """Where the client's packages are: a topic of Amazon Linux 2's extras, or FSx's repository,
    which has Ubuntu's codenames only."""
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
    # The package tool's plugin that holds packages; the script is the last that installs.
    packages={"HOLD_OS_PACKAGES": "hold-plugin"},
)

CLEANUP = Component(
    name="cleanup",
    what="removal of keys, identities, histories, caches and cloud-init state",
    optional=False,
)

HYGIENE = Component(
    name="hygiene",
    what="assertion that the clean-up left nothing behind, right before the snapshot",
    optional=False,
)
