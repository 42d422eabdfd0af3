"""Locked memory, open files and kernel settings for EFA and NCCL."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component

SYSCTLS = """\
# AMI Kiln: kernel settings of the `tuning` component (kiln/facts/knowledge/components.yaml).
# Data loaders map many files and watch many. source: awslabs/amazon-eks-ami
# templates/al2023/runtime/rootfs/etc/sysctl.conf
vm.max_map_count = 524288
fs.inotify.max_user_watches = 524288
fs.inotify.max_user_instances = 8192
kernel.pid_max = 4194304
# A worker that died is noticed in minutes, not in two hours. source: the same file
net.ipv4.tcp_keepalive_time = 600
net.ipv4.tcp_keepalive_intvl = 60
net.ipv4.tcp_keepalive_probes = 3
"""
# libfabric's EFA provider needs it; Amazon Linux has it open already.
PTRACE = """\
# libfabric's EFA provider copies between the ranks of one host with it. It also lets every process
# of a user read that user's others. Amazon Linux has 0 already. source: aws/aws-parallelcluster-cookbook
# resources/efa/partial/_disable_ptrace_debian.rb; man page fi_efa(7)
kernel.yama.ptrace_scope = 0
"""
LIMITS = """\
# AMI Kiln: limits of the `tuning` component (kiln/facts/knowledge/components.yaml). `*` leaves root out.
# EFA and NCCL register memory, which locks it. source: NCCL user guide, troubleshooting, InfiniBand;
# aws/aws-parallelcluster-cookbook PR 341; awslabs/awsome-distributed-ai issue 647
*    - memlock unlimited
root - memlock unlimited
# A socket per peer and channel. Amazon Linux 2 has 65536 already, the others 1024.
# source: public note on its limits (find_string 48345528514); ECS, Ulimit (Fargate has 65535)
*    - nofile  65536
root - nofile  65536
"""
SERVICES = """\
# AMI Kiln: what a service (a container runtime, a scheduler's daemon) hands on to its jobs;
# limits.d is for logins only. source: as for limits.d/60-kiln.conf
[Manager]
DefaultLimitMEMLOCK=infinity
"""


def files(recipe: Recipe) -> dict[str, str]:
    """The kernel's settings, the limits of logins and those of services."""
    ptrace = PTRACE if recipe.efa and recipe.distro.family == "debian" else ""
    return {
        "etc/sysctl.d/60-kiln.conf": SYSCTLS + ptrace,
        "etc/security/limits.d/60-kiln.conf": LIMITS,
        "etc/systemd/system.conf.d/60-kiln.conf": SERVICES,
    }


COMPONENT = Component(
    name="tuning",
    what="locked memory, open files and kernel settings for EFA and NCCL",
    files=files,
)
