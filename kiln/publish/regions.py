"""Regions of the publishing tasks: what `--regions` and the matrix name, asked side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kiln.base import vocabulary
from kiln.base.errors import KilnError, nearest
from kiln.cloud import aws
from kiln.cloud.target import Target

Answer = TypeVar("Answer")
Say = Callable[[str], None]
# As many regions as AWS enables in an account by default.
_AT_ONCE = 17


def in_regions(
    target: Target, regions: Iterable[str], ask: Callable[[Target], Answer]
) -> dict[str, Answer]:
    """Return the answer of the target in each region, asked side by side. An error names every
    region in which it failed."""
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        answers = {region: pool.submit(ask, target.in_region(region)) for region in regions}
    errors = [answer.exception() for answer in answers.values()]
    if failed := [error for error in errors if isinstance(error, KilnError)]:
        raise KilnError(
            "\n".join(dict.fromkeys(error.message for error in failed)),
            hint="; ".join(dict.fromkeys(error.hint for error in failed if error.hint)),
            exit_status=min(error.exit_status for error in failed),
        )
    return {region: answer.result() for region, answer in answers.items()}


def answering(target: Target) -> Target:
    """Return the target with its place known; an error if it does not answer."""
    if gone := target.hooks.gone():
        raise gone
    return target.identified()


def named_regions(text: str) -> list[str]:
    """Return the regions of `--regions a,b`."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise KilnError("--regions names no region", hint="--regions eu-west-1,us-west-2")
    return require_regions(names, "--regions")


def require_regions(names: Iterable[str], called: str) -> list[str]:
    """Return the names, each once. One that AWS does not have would only be a host that is not
    found; `called` says where it comes from."""
    found = list(dict.fromkeys(names))
    for name in found:
        vocabulary.REGION.required(name, called)
        if name not in aws.regions():
            best = nearest(name, aws.regions())
            raise KilnError(
                f"{called} {name}: AWS has no region of that name, as far as boto3 here knows",
                hint=f"did you mean {best}?" if best else "",
            )
    return found
