"""Lists skipped tests and what they need to run, at the end of `./invoke test`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from devel.junit import cases, id_of

# The version by which a test judges what a MIG file may say.
MIG_PARTED = "0.15.0"

# Pattern of a skip's reason → what the test needs to run. The first match counts.
LIFTED_BY = (
    (r"qemu-user-static", "root, binfmt_misc in the kernel, and the package qemu-user-static"),
    (r"/dev/kmsg", "root on a machine whose /dev/kmsg can be written"),
    (r"systemctl", "root, and the package systemd"),
    (r"systemd-analyze", "the package systemd"),
    (r"binutils", "the package binutils"),
    (r"KILN_OWN_KERNEL", "minutes: ./invoke test --all, or KILN_OWN_KERNEL=1"),
    (r"KILN_WORKERS", "minutes: ./invoke test --all, or KILN_WORKERS=1"),
    (r"KILN_REAL_RUNTIMES", "Debian's mirror: ./invoke test --all, or KILN_REAL_RUNTIMES=1"),
    (r"KILN_REAL_UBUNTU", "Ubuntu's archive: ./invoke test --all, or KILN_REAL_UBUNTU=1"),
    (r"KILN_REAL_SLURM", "Debian's mirror: ./invoke test --all, or KILN_REAL_SLURM=1"),
    (r"KILN_ANSIBLE", "ansible-core: KILN_ANSIBLE=/path/to/ansible-playbook"),
    (r"no go on PATH", "the package golang-go, and Go's module proxy"),
    (
        r"nvidia-mig-parted",
        f"NVIDIA's mig-parted {MIG_PARTED} on PATH: go build ./cmd/nvidia-mig-parted",
    ),
    (r"KILN_SECOND_PACKER", "Packer 1.7 or newer: KILN_SECOND_PACKER, PACKER_PLUGIN_PATH"),
    (r"chromium", "the package chromium, or KILN_CHROMIUM=/path/to/chromium"),
    (r"bash 4\.2", "the machine's own bash: without KILN_TEST_BASH"),
    (r"needs Packer", "the package packer, or KILN_PACKER=/path/to/packer"),
    (
        r"KILN_PCLUSTER",
        "aws-parallelcluster: KILN_PCLUSTER=/path/to/python (docs/consume.md)",
    ),
    (r"the AWS CLI", "AWS's command line on PATH: the package awscli"),
    (r"KILN_EKSCTL_SCHEMA", "eksctl's schema.json: KILN_EKSCTL_SCHEMA=/path (docs/consume.md)"),
    (r"definitions cannot be fetched", "a Go module proxy that this machine can reach"),
    (r"no other Python", "other Python versions from pyenv, 3.7 to 3.13: pyenv install 3.12"),
    (r"no Python (?P<version>[\d.]+|{\w+})", "that Python version: pyenv install 3.x"),
    (r"Debian mirror|Ubuntu's archive cannot", "a package mirror that this machine can reach"),
    (r"not quiet", "a machine whose kernel log nobody else writes to meanwhile"),
    (r"IPv6", "IPv6 on the loopback interface"),
    (r"the lab cannot run here", "root on a Linux machine with namespaces and overlayfs"),
    (
        r"on this image and instance type|does not belong to this image",
        "an image that has the component: KILN_MUTATION_ROWS names the rows to mutate",
    ),
    (r"others go through sudo|\broot\b", "root: sudo ./invoke test"),
)
UNKNOWN = "see the reason"


@dataclass(frozen=True)
class Skip:
    """A skipped test and its reason."""

    test: str
    reason: str

    @property
    def lifted_by(self) -> str:
        """What the test needs to run."""
        return next(
            (lift for pattern, lift in LIFTED_BY if re.search(pattern, self.reason)), UNKNOWN
        )


def read(reports: Iterable[Path]) -> list[Skip]:
    """The skipped tests in pytest's JUnit reports; missing reports are ignored."""
    skips = []
    for report in reports:
        for case in cases(report):
            skipped = case.find("skipped")
            if skipped is not None:
                name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
                skips.append(Skip(id_of(case) or name, skipped.get("message", "")))
    return skips


def as_text(skips: Iterable[Skip]) -> str:
    """A list for people, grouped by what the tests need; empty when nothing was skipped."""
    groups: dict[str, list[Skip]] = {}
    for skip in skips:
        groups.setdefault(skip.lifted_by, []).append(skip)
    if not groups:
        return ""
    count = sum(map(len, groups.values()))
    lines = [f"{count} {'test was' if count == 1 else 'tests were'} skipped. To run them:"]
    for lift, group in groups.items():
        lines.append(f"  {lift}")
        lines += [f"    {skip.test}: {skip.reason}" for skip in group]
    return "\n".join(lines)
