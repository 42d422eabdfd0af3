"""Flags that several tasks have, each with the help text that `./invoke --help TASK` prints."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from kiln.base.account import FORMS
from kiln.base.errors import KilnError

Task = Callable[..., "int | None"]

JSON = {"json": "print JSON for a program instead of text; errors too"}

NO_INSTALL = {"no-install": "install no system packages: if some are missing, say how to and stop"}

TARGET = {
    "target": "auto (AWS if boto3 finds credentials, otherwise the lab), aws or lab: --target lab",
    "region": "AWS region: --region eu-central-1 (default: the profile's, otherwise us-east-1)",
    **NO_INSTALL,
}
# Of tasks that need no package of this machine.
PLACE = {key: TARGET[key] for key in ("target", "region")}

# Flags that select rows of the matrix.
ROWS = {
    "distro": "distribution in the matrix: --distro al2",
    "driver": "NVIDIA driver version, or its beginning: --driver 510.47.03, --driver 580",
    "flavor": "base (default if several rows match), eks, ecs or parallelcluster: --flavor eks",
    "arch": "x86_64 (default if several rows match) or arm64: --arch arm64",
    "cuda": "CUDA version, or its beginning: --cuda 11.6",
    "kernel-module": "open, proprietary or both: --kernel-module both",
    "name": "the AMI's name, as ./invoke list shows it: --name debian12-535.309.01-base-x86_64",
    "all": "every row that matches the other flags",
}

# The check of an AMI with its own kernel, in the lab.
OWN_KERNEL = {
    "own-kernel": "in the lab: check the AMI on a machine of its own that boots the AMI's kernel",
    "disk": "keep the disk that --own-kernel boots, as a raw image: --disk out.raw",
}


def positive_number(text: str, flag: str) -> float:
    """The number that a flag gives. Raises KilnError (exit status 2) unless it is above 0."""
    try:
        number = float(text) if text.isascii() else 0
    except ValueError:
        number = 0
    if not 0 < number < 1e9:
        raise KilnError(f"{flag} {text} is not a number above 0", hint=f"for example {flag} 2.5")
    return number


# Flags that replace `aws` settings of the matrix.
ACCOUNT = {
    "tags": "tags of all that is made in AWS, besides those of amis.yaml",
    "subnet_id": "subnet of the instances (default: a default subnet)",
    "subnet_ids": "subnets in order: the next when EC2 has no capacity",
    "subnet_filter": "finds the subnet by EC2's filters",
    "security_group_ids": "your own groups for the instances, instead of a temporary one",
    "ssh_interface": "public_ip, private_ip or session_manager (default: as the subnet has it)",
    "ssh_source_cidrs": "who may reach SSH on the instances (default: this machine)",
    "kms_key_id": "KMS key that encrypts volumes and AMI",
    "iam_instance_profile": "profile of the instances",
    "instance_types": "types that bake, in order: the next when EC2 has no capacity",
    "spot": "bake and check on Spot instances",
    "capacity_reservation_id": "launch instances of its type in a capacity reservation",
    "proxy": "proxy of the bake",
    "no_proxy": "what the bake reaches without the proxy",
    "mirrors": "beginnings of vendors' URLs and what takes their place in the bake",
    "time_limits": "how long a component's provisioner may take; all: each other one",
    "records_bucket": "S3 bucket of the records that machines share",
}
# Those that a launch without a bake has.
LAUNCH = (
    "tags",
    "subnet_id",
    "subnet_ids",
    "subnet_filter",
    "security_group_ids",
    "ssh_interface",
    "ssh_source_cidrs",
    "iam_instance_profile",
    "spot",
    "capacity_reservation_id",
    "records_bucket",
)
# Of tasks that read or write records.
RECORDS = ("records_bucket",)


def account_help(names: Iterable[str] = tuple(ACCOUNT)) -> dict[str, str]:
    """The help of these flags, each with the form in which it is typed."""
    return {name.replace("_", "-"): f"{ACCOUNT[name]}: {FORMS[name]}" for name in names}


def replaces_settings(names: Iterable[str] = tuple(ACCOUNT)) -> Callable[[Task], Task]:
    """Give a task's function flags of ACCOUNT. In the place of its parameter `aws_flags` it gets
    what was typed, as `kiln.matrix.overrides.overridden` takes it; `region` too, if the task has
    it."""
    flags = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False if name == "spot" else None
        )
        for name in names
    ]

    def decorate(body: Task) -> Task:
        own = list(inspect.signature(body).parameters.values())

        @functools.wraps(body)
        def with_settings(*arguments: Any, **typed: Any) -> int | None:
            values = {flag.name: typed.pop(flag.name, flag.default) for flag in flags}
            values = {name: value for name, value in values.items() if value}
            if typed.get("region"):
                values["region"] = typed["region"]
            texts = {name: str(value) for name, value in values.items()}
            return body(*arguments, aws_flags=texts, **typed)

        before = [each for each in own if each.default is each.empty and each.name != "aws_flags"]
        after = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in own
            if each.default is not each.empty
        ]
        signature = inspect.Signature([*before, *flags, *after])
        with_settings.__signature__ = signature  # type: ignore[attr-defined]
        return with_settings

    return decorate


Selection = dict[str, Any]


def selects_rows(body: Callable[..., int | None]) -> Callable[..., int | None]:
    """Give a task's function the flags of ROWS. It gets their values as its second argument, as
    `kiln.matrix.select.select` takes them."""
    context, _, *own = inspect.signature(body).parameters.values()
    flags = [
        inspect.Parameter(
            name.replace("-", "_"),
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name == "all" else None,
        )
        for name in ROWS
    ]

    @functools.wraps(body)
    def with_flags(context: Any, **typed: Any) -> int | None:
        selection = {flag.name: typed.pop(flag.name, flag.default) for flag in flags}
        return body(context, {"every": selection.pop("all"), **selection}, **typed)

    keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    signature = inspect.Signature([context, *flags, *keyword])
    with_flags.__signature__ = signature  # type: ignore[attr-defined]
    return with_flags
