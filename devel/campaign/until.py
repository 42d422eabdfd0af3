"""A plugin of pytest: tests that would begin after a moment are skipped as not tried.

KILN_UNTIL is that moment by the monotonic clock, which all processes share. Each run begins at
another test.
"""

from __future__ import annotations

import os
import random
import time

import pytest

NO_TIME = "not tried: no time left"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin at a random test; the order stays, for neighbours share a guest."""
    start = random.randrange(len(items)) if items else 0
    items[:] = items[start:] + items[:start]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test out when the time is over."""
    if time.monotonic() > float(os.environ["KILN_UNTIL"]):
        pytest.skip(NO_TIME)
