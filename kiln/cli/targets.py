"""Chooses between AWS and the lab, a package of its own that entry points name.

Only this module knows it, and loads it only where it is asked for: AWS needs nothing of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from kiln.base import vocabulary
from kiln.base.account import REGION_VARIABLES
from kiln.base.errors import KilnError, did_you_mean
from kiln.cloud import aws
from kiln.cloud.target import DEFAULT_REGION, Target
from kiln.matrix import load

if TYPE_CHECKING:
    from kiln.cloud.instance import Machine

KINDS = ("auto", "aws", "lab")
VENDORS = ("stand-ins", "real")


def _lab() -> Any:
    """Return the lab's module of its target."""
    for found in metadata.entry_points(group="ami_kiln.targets", name="lab"):
        return found.load()
    raise KilnError("no lab is here", hint="use --target aws, or a whole checkout of AMI Kiln")


def task_modules(words: Sequence[str], known: Container[str]) -> list[Any]:
    """Return the lab's tasks, unless the words of a command line only name known ones."""
    if words and words[0] in known and not any(word.startswith("lab.") for word in words):
        return []
    return [found.load() for found in metadata.entry_points(group="ami_kiln.tasks")]


def choose(wanted: str = "auto", region: str | None = None, vendors: str | None = None) -> Target:
    """Return the target for `--target`; `auto` is AWS if boto3 finds credentials, else the lab.

    `vendors`, of `--vendors`, says whose hosts the lab's guests ask; AWS's instances ask no others.
    """
    if wanted not in KINDS:
        raise KilnError(f"--target {wanted} is not known", hint=did_you_mean(wanted, KINDS))
    if vendors and vendors not in VENDORS:
        raise KilnError(f"--vendors {vendors!r} is not known", hint=did_you_mean(vendors, VENDORS))
    vocabulary.REGION.optional(region, "--region")
    why = "--target lab" if wanted == "lab" else "no AWS credentials found"
    if wanted != "lab":
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "").rstrip("/")
        if endpoint and endpoint == _lab().endpoint():
            why = "AWS_ENDPOINT_URL is the lab's"
        elif method := aws.find_credentials():
            if vendors == "stand-ins":
                raise KilnError("--vendors stand-ins are the lab's", hint="add --target lab")
            where = region or _configured_region()
            return Target(f"AWS credentials found: {method}", where)
        elif wanted == "aws":
            raise KilnError(
                "no AWS credentials found (--target aws)",
                hint="configure them (aws configure, aws sso login, AWS_PROFILE), or use "
                "--target lab",
            )
    lab: Target = _lab().target(why, vendors)
    if wanted == "lab" and region is None:
        # The lab does not need what is configured for AWS.
        with contextlib.suppress(KilnError):
            return lab.in_region(_configured_region())
        return lab
    return lab.in_region(region or _configured_region())


def choose_aws(wanted: str, region: str | None, task: str) -> Target:
    """Return AWS, for a task that the lab cannot do."""
    chosen = choose(wanted, region)
    if chosen.kind != Target.kind:
        raise KilnError(
            f"{task} needs an AWS account: the lab ({chosen.why}) has neither CloudFormation nor "
            "CodeBuild",
            hint="configure credentials (aws configure, aws sso login), and use --target aws",
        )
    return chosen


def bypass_proxy() -> None:
    """Reach the lab, which answers on 127.0.0.1, without a proxy. Go's programs do that by
    themselves."""
    hosts = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if hosts != "*" and any(name.lower().endswith("_proxy") for name in os.environ):
        hosts = ",".join(filter(None, [hosts, "127.0.0.1", "localhost"]))
        os.environ |= {"no_proxy": hosts, "NO_PROXY": hosts}


def kind_of_machine(machine: Machine) -> str:
    """Return the kind of target that a machine runs in, as it shows itself: `choose` asks where
    this machine's credentials are for."""
    return "lab" if _lab().is_guest(machine.ssh) else Target.kind


def _configured_region() -> str:
    """Return the region of the environment, otherwise of the matrix's `defaults`, of the profile,
    or us-east-1."""
    for name in REGION_VARIABLES:
        if os.environ.get(name):
            return vocabulary.REGION.required(os.environ[name], name)
    if ours := load.default_region():
        return ours
    profile = aws.profile_region() or DEFAULT_REGION
    return vocabulary.REGION.required(profile, "the profile's region")
