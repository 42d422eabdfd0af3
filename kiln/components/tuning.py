"""Locked memory, open files and kernel settings for EFA and NCCL."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component

SYSCTLS = """\
# AMI Kiln: kernel settings of the component `tuning` (kiln/components/tuning.py).
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
PTRACE = """\
# libfabric's EFA provider needs it to copy between the ranks of one host. It also lets every
# process of a user read the user's other processes. Amazon Linux has 0 already. Source:
# https://ofiwg.github.io/libfabric/main/man/fi_efa.7.html
kernel.yama.ptrace_scope = 0
"""
LIMITS = """\
# AMI Kiln: limits of the component `tuning` (kiln/components/tuning.py). `*` leaves root out.
# EFA and NCCL register memory, which locks it. Source:
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
*    - memlock unlimited
root - memlock unlimited
# Our choice: NCCL opens a socket per peer and channel, and the usual limit is 1024.
{nofile}
"""
_NOFILE = "*    {0} nofile  65536\nroot {0} nofile  65536"
SERVICES = """\
# AMI Kiln: what a service (a container runtime, a scheduler's daemon) passes on to its jobs;
# limits.d applies to logins only. Source: as in limits.d/60-kiln.conf
[Manager]
DefaultLimitMEMLOCK=infinity
"""


def files(recipe: Recipe) -> dict[str, str]:
    """The kernel's settings, the limits of logins and those of services."""
    # Only the soft limit: a program may raise it up to the hard one, which systemd sets higher
    # (524288). Before systemd 240, on Amazon Linux 2, that one is 4096.
    nofile = _NOFILE.format("-" if recipe.distro.id == "al2" else "soft")
    ptrace = PTRACE if recipe.efa and recipe.distro.family == "debian" else ""
    return {
        "etc/sysctl.d/60-kiln.conf": SYSCTLS + ptrace,
        "etc/security/limits.d/60-kiln.conf": LIMITS.format(nofile=nofile),
        "etc/systemd/system.conf.d/60-kiln.conf": SERVICES,
    }


COMPONENT = Component(
    name="tuning",
    what="locked memory, open files and kernel settings for EFA and NCCL",
    files=files,
)
