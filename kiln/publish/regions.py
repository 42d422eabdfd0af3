"""Asks several regions side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kiln.base.errors import KilnError

Answer = TypeVar("Answer")
# As many regions as AWS enables in an account by default.
_AT_ONCE = 17


def in_regions(regions: Sequence[str], ask: Callable[[str], Answer]) -> dict[str, Answer]:
    """`ask` for each region, side by side. Raises KilnError (exit status 1) that names every
    region in which it failed."""

    def answer_or_error(region: str) -> Answer | KilnError:
        try:
            return ask(region)
        except KilnError as error:
            return error

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        answers = dict(zip(regions, pool.map(answer_or_error, regions), strict=True))
    failed = [answer for answer in answers.values() if isinstance(answer, KilnError)]
    if failed:
        hints = dict.fromkeys(error.hint for error in failed if error.hint)
        raise KilnError(
            "\n".join(dict.fromkeys(error.message for error in failed)),
            hint="; ".join(hints),
            exit_status=min(error.exit_status for error in failed),
        )
    return {
        region: answer for region, answer in answers.items() if not isinstance(answer, KilnError)
    }
