"""Versions of packages are compared as dpkg and rpm compare them; both are asked."""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Sequence

from kiln.base.package_versions import is_newer, order

# Versions that Debian's, Ubuntu's and Amazon's archives have, and the corners of the rules.
VERSIONS = [
    *("3.0.17-1~deb12u2", "3.0.17-1~deb12u3", "3.0.17-1", "3.0.2-0ubuntu1.19", "3.0.2-0ubuntu1.2"),
    *("1:9.2p1-2+deb12u7", "9.2p1-2+deb12u7", "2:1.0-1", "0:3.0.17-1", "1.0", "1.0-0", "1.0-1"),
    *("5.10.223-211.872.amzn2", "5.10.227-219.884.amzn2", "5.10.227", "4.14.355-277.643.amzn2"),
    *("1.0~rc1", "1.0~rc1-1", "1.0~~", "1.0~", "1.0a", "1.0+git1", "1.0.", "1.0a1", "1.0b", "1.00"),
    *("6.1.140-1", "6.1.147-1", "6.1.9-1", "8.3.0-1.amzn2.0.5", "8.3.0-1.amzn2.0.10", "010", "10"),
    *(
        "1.0^git1",
        "1.0^",
        "1.0^git1~pre",
        "1.0.1",
        "1.0.a",
        "1.0.0",
        "0",
        "1",
        "a",
        "1.0_1",
        "2.a.1",
    ),
]
PAIRS = list(itertools.product(VERSIONS, repeat=2))


def signs(manager: str, pairs: Sequence[tuple[str, str]]) -> list[int]:
    compared = (order("dpkg" if manager == "dpkg" else "rpm", *pair) for pair in pairs)
    return [(number > 0) - (number < 0) for number in compared]


def by_dpkg(version: str, other: str) -> int:
    """What dpkg says; it refuses a version that begins with a letter, and one with ^ or _."""
    for word, sign in (("lt", -1), ("eq", 0)):
        command = ["dpkg", "--compare-versions", version, word, other]
        if subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0:
            return sign
    return 1


def test_versions_are_in_dpkgs_order() -> None:
    allowed = [
        (version, other)
        for version, other in PAIRS
        if not any(set("^_") & set(text) or text[0] == "a" for text in (version, other))
    ]
    chosen = random.Random(1).sample(allowed, 400)
    assert signs("dpkg", chosen) == [by_dpkg(*pair) for pair in chosen]


def test_versions_are_in_rpms_order() -> None:
    lines = [f'print(rpm.vercmp("{version}", "{other}"), "")' for version, other in PAIRS]
    # A macro cannot be as long as all of them.
    printed = []
    for first in range(0, len(lines), 100):
        script = "\n".join(lines[first : first + 100])
        command = ["rpm", "--eval", f"%{{lua:{script}}}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        printed += [int(word) for word in done.stdout.split()]
    assert len(printed) == len(PAIRS)
    assert signs("rpm", PAIRS) == printed


def test_a_number_of_many_digits_is_compared() -> None:
    assert is_newer("dpkg", f"1.{'9' * 5000}", "1.1")
    assert is_newer("rpm", f"1.{'9' * 5000}", "1.1")
