"""Flags that several tasks have, each with the help text that `./invoke --help TASK` prints."""

JSON = {"json": "print JSON for a program instead of text; errors too"}

NO_INSTALL = {"no-install": "install no system packages: if some are missing, say how to and stop"}

TARGET = {
    "target": "auto (AWS if boto3 finds credentials, otherwise the lab), aws or lab: --target lab",
    "region": "AWS region: --region eu-central-1 (default: the profile's, otherwise us-east-1)",
    **NO_INSTALL,
}

# Flags that select rows of the matrix.
ROWS = {
    "distro": "distribution in the matrix: --distro al2",
    "driver": "NVIDIA driver version, or its beginning: --driver 510.47.03, --driver 580",
    "flavor": "base (default if several rows match), eks, ecs or parallelcluster: --flavor eks",
    "arch": "x86_64 (default if several rows match) or arm64: --arch arm64",
    "cuda": "CUDA version, or its beginning: --cuda 11.6",
    "kernel-module": "open, proprietary or both: --kernel-module both",
    "name": "the AMI's name in the matrix, as ./invoke list shows it",
    "all": "every row that matches the other flags",
}

# The check of an AMI with its own kernel, in the lab.
OWN_KERNEL = {
    "own-kernel": "in the lab: check the AMI on a machine of its own that boots the AMI's kernel",
    "disk": "keep the disk that --own-kernel boots, as a raw image: --disk out.raw",
}
