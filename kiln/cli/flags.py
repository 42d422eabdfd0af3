"""Flags that several tasks have, each with the help text that `./invoke --help TASK` prints."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from kiln.base.account import SETTINGS, setting_help
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
    """The number that a flag gives, which must be above 0."""
    try:
        number = float(text) if text.isascii() else 0
    except ValueError:
        number = 0
    if not 0 < number < 1e9:
        raise KilnError(f"{flag} {text} is not a number above 0", hint=f"for example {flag} 2.5")
    return number


# The `aws` settings that flags replace; `region` is one of TARGET.
ACCOUNT = tuple(name for name in SETTINGS if name != "region")
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


def account_help(names: Iterable[str] = ACCOUNT) -> dict[str, str]:
    """The help of these flags, each with the form in which it is typed."""
    return {name.replace("_", "-"): setting_help(name) for name in names}


def replaces_settings(names: Iterable[str] = ACCOUNT) -> Callable[[Task], Task]:
    """Give a task's function flags of ACCOUNT. In the place of its parameter `aws_flags` it gets
    what was typed, as `kiln.matrix.flags.overridden` takes it; `region` too, if the task has it."""
    flags = _keywords(names, switches=("spot",))

    def decorate(body: Task) -> Task:
        own = [each for each in _parameters(body) if each.name != "aws_flags"]

        @functools.wraps(body)
        def with_settings(*arguments: Any, **typed: Any) -> int | None:
            values = {flag.name: typed.pop(flag.name, flag.default) for flag in flags}
            values["region"] = typed.get("region")
            texts = {name: str(value) for name, value in values.items() if value}
            return body(*arguments, aws_flags=texts, **typed)

        required = [each for each in own if each.default is each.empty]
        return _with_signature(with_settings, required, flags, own[len(required) :])

    return decorate


Selection = dict[str, Any]


def selects_rows(body: Task) -> Task:
    """Give a task's function the flags of ROWS. It gets their values as its second argument, as
    `kiln.matrix.select.select` takes them."""
    context, _, *own = _parameters(body)
    flags = _keywords((name.replace("-", "_") for name in ROWS), switches=("all",))

    @functools.wraps(body)
    def with_flags(context: Any, **typed: Any) -> int | None:
        selection = {flag.name: typed.pop(flag.name, flag.default) for flag in flags}
        return body(context, {"every": selection.pop("all"), **selection}, **typed)

    return _with_signature(with_flags, [context], flags, own)


def _parameters(body: Task) -> list[inspect.Parameter]:
    return list(inspect.signature(body).parameters.values())


def _keywords(names: Iterable[str], switches: Collection[str]) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False if name in switches else None
        )
        for name in names
    ]


def _with_signature(
    body: Task, first: Sequence[inspect.Parameter], *then: Sequence[inspect.Parameter]
) -> Task:
    """The function with these parameters, which Invoke reads for its flags."""
    keywords = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for group in then for each in group
    ]
    body.__signature__ = inspect.Signature([*first, *keywords])  # type: ignore[attr-defined]
    return body
