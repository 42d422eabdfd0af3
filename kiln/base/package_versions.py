"""Versions of packages in the order of dpkg and of rpm: 1:1.0 > 2.0, 1.0~rc1 < 1.0.

dpkg: https://manpages.debian.org/bookworm/dpkg-dev/deb-version.7.en.html
rpm: https://rpm-software-management.github.io/rpm/manual/version-comparison.html (rpmvercmp)
"""

from __future__ import annotations

import re
from typing import Literal

Manager = Literal["dpkg", "rpm"]

_PARTS = re.compile(r"[0-9]+|[a-zA-Z]+|~|\^")


def is_newer(manager: Manager, version: str, other: str) -> bool:
    """Does the package tool take `version` for newer than `other`? Both with epoch and release."""
    return order(manager, version, other) > 0


def order(manager: Manager, version: str, other: str) -> int:
    """Below 0, 0 or above 0: `version` is older than `other`, the same, or newer."""
    compare = _order_deb if manager == "dpkg" else _order_rpm
    mine, others = _split(version), _split(other)
    return (
        _order_numbers(mine[0], others[0])
        or compare(mine[1], others[1])
        or compare(mine[2], others[2])
    )


def _split(version: str) -> tuple[str, str, str]:
    """Epoch (0 without one), version and release; the release of a version without one is ""."""
    epoch, colon, rest = version.partition(":")
    if not colon or not re.fullmatch("[0-9]+", epoch):
        epoch, rest = "0", version
    upstream, _, release = rest.rpartition("-")
    return epoch, upstream or release, release if upstream else ""


def _order_deb(text: str, other: str) -> int:
    """Parts without digits and numbers take turns; `~` is before the end, letters before others."""
    while text or other:
        words, text = _leading(text, r"[^0-9]*")
        other_words, other = _leading(other, r"[^0-9]*")
        for index in range(max(len(words), len(other_words))):
            difference = _weight(words, index) - _weight(other_words, index)
            if difference:
                return difference
        number, text = _leading(text, r"[0-9]*")
        other_number, other = _leading(other, r"[0-9]*")
        difference = _order_numbers(number or "0", other_number or "0")
        if difference:
            return difference
    return 0


def _leading(text: str, pattern: str) -> tuple[str, str]:
    """What the text begins with, and its rest."""
    match = re.match(pattern, text)
    length = match.end() if match else 0
    return text[:length], text[length:]


def _weight(words: str, index: int) -> int:
    if index >= len(words):
        return 0
    character = words[index]
    if character == "~":
        return -1
    return ord(character) if character.isascii() and character.isalpha() else ord(character) + 256


def _order_numbers(number: str, other: str) -> int:
    """As text: Python refuses to read a number of thousands of digits."""
    mine, others = number.lstrip("0"), other.lstrip("0")
    if len(mine) != len(others):
        return len(mine) - len(others)
    return (mine > others) - (mine < others)


def _order_rpm(text: str, other: str) -> int:
    """Compares numbers and words in turn. `~` sorts before the end of the string, `^` after it;
    digits sort after letters; with equal prefixes the longer is newer."""
    mine, others = _PARTS.findall(text), _PARTS.findall(other)
    for index in range(max(len(mine), len(others))):
        part = mine[index] if index < len(mine) else ""
        other_part = others[index] if index < len(others) else ""
        if part == other_part:
            continue
        difference = _order_of_parts(part, other_part)
        if difference:
            return difference
    return 0


def _order_of_parts(part: str, other: str) -> int:
    if part[:1].isdecimal() and other[:1].isdecimal():
        return _order_numbers(part, other)
    return _rank(part) - _rank(other) or (part > other) - (part < other)


def _rank(part: str) -> int:
    """Which kind of part is newer: `~`, the end, `^`, a word, a number."""
    if part in ("~", "", "^"):
        return ("~", "", "^").index(part)
    return 4 if part[0].isdecimal() else 3
