"""A plugin of pytest: tests that would begin after a moment are skipped as not tried.

KILN_UNTIL is that moment by the monotonic clock, which all processes share. Each run begins at
another test. KILN_PASSED names, a line each, the tests that an earlier run has passed.
"""

from __future__ import annotations

import os
import random
import time

import pytest

NO_TIME = "not tried: no time left"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has passed, and begin at a random test; the order stays.

    Neighbours share a guest.
    """
    passed = {*os.environ.get("KILN_PASSED", "").split("\n")}
    left = [item for item in items if _name(item) not in passed]
    config.hook.pytest_deselected(items=[item for item in items if _name(item) in passed])
    start = random.randrange(len(left)) if left else 0
    items[:] = left[start:] + left[:start]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test out when the time is over."""
    if time.monotonic() > float(os.environ["KILN_UNTIL"]):
        pytest.skip(NO_TIME)


def _name(item: pytest.Item) -> str:
    """The test's name as a JUnit report has it."""
    path, *rest = item.nodeid.split("::")
    return "::".join([path.removesuffix(".py").replace("/", "."), *rest])
