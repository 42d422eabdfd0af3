"""Versions compared as numbers: 535.98 < 535.104.05, 5.14 > 5.4."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

Entry = TypeVar("Entry", bound=Mapping[str, Any])


# A check of the matrix compares a few hundred versions about a hundred thousand times.
@lru_cache(maxsize=8192)
def key(version: str) -> tuple[int, ...]:
    """The numbers in a version, for comparison; trailing zeros do not count: 12.2.0 is 12.2."""
    numbers = [int(number) for number in re.findall("[0-9]+", version)]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def at_least(version: str, floor: str) -> bool:
    """Is `version` equal to `floor` or newer?"""
    return key(version) >= key(floor)


def below(version: str, limit: str) -> bool:
    """Is `version` older than `limit`?"""
    return key(version) < key(limit)


def same(version: str, other: str) -> bool:
    """Are they the same version, however written: 510.47.3 and 510.47.03?"""
    return key(version) == key(other)


def newest(versions: Iterable[str]) -> str | None:
    """The newest version, or None if there are none."""
    return max(versions, key=key, default=None)


def last_reached(entries: Iterable[Entry], since: str, version: str) -> Entry | None:
    """Of entries that hold from a version on, named by the key `since`, the one that holds for
    `version`; None if it is older than all. Of two from the same version the first one counts,
    which is an overlay's."""
    reached = [entry for entry in entries if at_least(version, entry[since])]
    return max(reached, key=lambda entry: key(entry[since]), default=None)


def major(version: str) -> str:
    """The part before the first dot: the branch of a driver, the major of CUDA."""
    return version.split(".", maxsplit=1)[0]


def series(version: str) -> str:
    """Major and minor: 11.6.2 → 11.6."""
    return ".".join(version.split(".")[:2])
