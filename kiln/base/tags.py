"""The tags that AMI Kiln writes on AWS resources and reads from them.

Templates and the IAM policy are rendered with them; `gpu_mig/imds.py` ships on the image, has its
own copy of one, and tests/unit/base/test_tags.py compares it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "kiln:"


def tag(name: str) -> str:
    """The key of a tag: run-id → kiln:run-id."""
    return PREFIX + name


# The run that made the resource. Clean-up removes only resources with this tag.
RUN_ID = tag("run-id")
# The recipe's name in the matrix, and its recipe digest.
RECIPE = tag("recipe")
RECIPE_DIGEST = tag("recipe-digest")
# The recipe's digest with the parent AMI and the package snapshot: what went in.
INPUT_DIGEST = tag("input-digest")
GIT_COMMIT = tag("git-commit")
SOURCE_AMI = tag("source-ami")
TARGET = tag("target")
DISTRO = tag("distro")
FLAVOR = tag("flavor")
ARCH = tag("arch")
DRIVER = tag("driver")
KERNEL_MODULE = tag("kernel-module")
CUDA = tag("cuda")
NCCL = tag("nccl")
EFA = tag("efa")

# The verdict of the AMI checks: `pass` or `fail`, when, by which commit.
VERIFIED = tag("verified")
# The verdict of the checks on an instance that booted the AMI's own kernel in the lab.
OWN_KERNEL = tag("own-kernel")
# Of a published AMI: its line (al2023/lts/base/x86_64). Of a copy: the AMI it is a copy of.
LINE = tag("line")
SOURCE_IMAGE = tag("source-image")
# Of an instance that a document of `consume` launches: the channel that it follows.
CHANNEL = tag("channel")
# Of an AMI that a template of `consume` bakes on top of one of ours: where its parent came from.
PARENT_LINE = tag("parent-line")
PARENT_CHANNEL = tag("parent-channel")
# Any value: `retire` leaves the AMI alone.
KEEP = tag("keep")
# When `retire` deprecated the AMI.
RETIRING = tag("retiring")
# The MIG layout to apply at boot; gpu-mig reads it on the instance.
MIG_CONFIG = tag("mig-config")


@dataclass(frozen=True)
class TaggedVerdict:
    """A verdict as an AMI's tag has it; `at` is a time in UTC (2026-08-01T12:00:00Z)."""

    passed: bool
    at: str
    commit: str

    @property
    def status(self) -> Literal["verified", "failed"]:
        """The status of a record whose checks gave this verdict."""
        return "verified" if self.passed else "failed"

    def __str__(self) -> str:
        return f"{'pass' if self.passed else 'fail'} {self.at} {self.commit}"


def read_verdict(value: str | None) -> TaggedVerdict | None:
    """The verdict in a tag's value; None for a value that is none, or without a tag."""
    word, *rest = (value or "").split(" ", 2)
    if word not in ("pass", "fail") or len(rest) != 2:
        return None
    return TaggedVerdict(word == "pass", *rest)


def says_verified(value: str | None) -> bool:
    """Return True if a tag's value says that the checks passed."""
    verdict = read_verdict(value)
    return verdict is not None and verdict.passed
