"""Flags that several tasks have, each with the help text that `./invoke --help TASK` prints."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from kiln.base.errors import KilnError

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


def positive_number(text: str, flag: str) -> float:
    """The number that a flag gives. Raises KilnError (exit status 2) unless it is above 0."""
    try:
        number = float(text) if text.isascii() else 0
    except ValueError:
        number = 0
    if not 0 < number < 1e9:
        raise KilnError(f"{flag} {text} is not a number above 0", hint=f"for example {flag} 2.5")
    return number


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
    def with_flags(context: Any, **given: Any) -> int | None:
        selection = {flag.name: given.pop(flag.name, flag.default) for flag in flags}
        return body(context, {"every": selection.pop("all"), **selection}, **given)

    keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    signature = inspect.Signature([context, *flags, *keyword])
    with_flags.__signature__ = signature  # type: ignore[attr-defined]
    return with_flags
