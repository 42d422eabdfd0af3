"""The names of the tags that AMI Kiln writes on AWS resources and reads from them.

Templates get them rendered, the IAM policy is generated with them; what ships on the image
(`gpu_mig/imds.py`) and docs/records.md are compared with them by tests/unit/test_tags.py.
"""

from __future__ import annotations

PREFIX = "kiln:"


def tag(name: str) -> str:
    """The key of a tag: run-id → kiln:run-id."""
    return PREFIX + name


# Which run made it. Clean-up removes only what carries this tag.
RUN_ID = tag("run-id")
# The recipe's name in the matrix, and the digest of what it asks for.
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

# What every resource of a bake carries, in the order of docs/records.md.
OF_A_BAKE = (
    RECIPE,
    RECIPE_DIGEST,
    INPUT_DIGEST,
    RUN_ID,
    GIT_COMMIT,
    SOURCE_AMI,
    TARGET,
    DISTRO,
    FLAVOR,
    ARCH,
    DRIVER,
    KERNEL_MODULE,
    CUDA,
    NCCL,
    EFA,
)
# The verdict of the checks: `pass` or `fail`, when, by which commit.
VERIFIED = tag("verified")
# Read by gpu-mig on an instance: the MIG layout to apply at boot.
MIG_CONFIG = tag("mig-config")
