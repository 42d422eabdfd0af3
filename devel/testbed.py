"""Checkouts with a short build, a user's environment, and what is in EC2 and runs: for tests."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from kiln import components
from kiln.base import yaml_files
from kiln.base.paths import ROOT

# The head and the first line of a key; hygiene.sh, which looks for keys, has only the head.
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\n[A-Za-z0-9+/=]{40}")

Inventory = dict[str, set[str]]


def users_environment(home: Path) -> dict[str, str]:
    """A user's environment with a home and a build folder of its own, and no AWS credentials."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    return {**clean, "KILN_BUILD_DIR": str(home / "build"), "HOME": str(home)}


def slim_matrix(folder: Path, *keep: str) -> Path:
    """A file for KILN_MATRIX: the same rows, but of the components only those that must be.

    A build of it takes half the time: for tests of what is around a bake, not of what is in it.
    `keep` are the components that stay all the same.
    """
    optional = {component.name for component in components.everything() if component.optional}
    rows = yaml_files.read_plain(ROOT / "amis.yaml")
    rows["defaults"]["without"] = sorted(optional - set(keep))
    path = folder / "amis.yaml"
    path.write_text(yaml.safe_dump(rows, sort_keys=False))
    return path


# Every character that Packer, ssh, bash or pytest reads as syntax of its own.
ODD_NAME = """é "q" 's $HOME {{x}} [1] ${x} *%s"""


def slim_checkout(folder: Path, *keep: str, name: str = ODD_NAME) -> Path:
    """A copy of this checkout with `slim_matrix`, for tests that change its files."""
    copy = folder / name
    # What git ignores is not part of it, and changes while it is copied: other tests run beside.
    # Compiled files are not made again; those that are being written have a number behind.
    ignored = {line.strip("/\n") for line in (ROOT / ".gitignore").open()}
    out = (".git", "*.pyc.*", *(ignored - {"__pycache__", "*.pyc"}))
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*out), symlinks=True)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    slim_matrix(copy, *keep)
    return copy


def bare_checkout(
    folder: Path,
    *keep: str,
    baked: Collection[str] = (),
    checked: Collection[str] = (),
    name: str = ODD_NAME,
) -> Path:
    """A slim checkout whose provisioners and checks do nothing: half of a slim build's CPU time.

    For what is around a bake and a verification: launches, waits, the clean-up. The provisioners of
    the components `baked`, and the checks of the components `checked`, are as they are.
    """
    copy = slim_checkout(folder, *keep, name=name)
    for script in (copy / "provisioners").glob("*.sh"):
        if script.stem not in baked:
            header = [line for line in script.read_text().splitlines(True) if line.startswith("#")]
            script.write_text("".join([*header, "sleep 0.2\n"]))
    for checks in (copy / "tests" / "ami").glob("test_*.py"):
        if checks.stem.removeprefix("test_").replace("_", "-") not in checked:
            checks.write_text("def test_nothing() -> None:\n    pass\n")
    return copy


def inventory(ec2: Any) -> Inventory:
    """List EC2 resources by kind. Leftovers of a run are new entries."""
    pages = ec2.describe_instances()["Reservations"]
    instances = [instance for page in pages for instance in page["Instances"]]
    return {
        "instances": {
            instance["InstanceId"]
            for instance in instances
            if instance["State"]["Name"] != "terminated"
        },
        "key pairs": {pair["KeyName"] for pair in ec2.describe_key_pairs()["KeyPairs"]},
        "security groups": {
            group["GroupId"] for group in ec2.describe_security_groups()["SecurityGroups"]
        },
        "volumes": {volume["VolumeId"] for volume in ec2.describe_volumes()["Volumes"]},
        "amis": {image["ImageId"] for image in ec2.describe_images(Owners=["self"])["Images"]},
        "snapshots": {
            snapshot["SnapshotId"]
            for snapshot in ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]
        },
    }


def processes_of(run_id: str) -> list[str]:
    """The command lines of what a run has started and not ended: Packer, checks, SSH."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"KILN_RUN_ID={run_id}".encode() in (process / "environ").read_bytes():
                processes.append((process / "cmdline").read_bytes().decode(errors="replace"))
    return processes
