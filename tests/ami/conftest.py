"""Chooses the checks that belong to the image, and gives all of them the fixtures of harness.py.

An overlay's checks are in a folder of their own: the fixtures are those of a plugin, which holds in
every folder, not of this file.
"""

from __future__ import annotations

import os

import pytest

# Otherwise an assertion in them does nothing under PYTHONOPTIMIZE.
pytest.register_assert_rewrite("expectations", "harness")
import harness  # noqa: E402
from applies import belongs  # noqa: E402

_CHECKS = ("tests", "ami")


def pytest_configure(config: pytest.Config) -> None:
    """Make the fixtures known to checks in other folders too."""
    if not config.pluginmanager.has_plugin("ami-checks"):
        config.pluginmanager.register(harness, "ami-checks")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remove the checks that do not belong to the image (applies.py); those that act come last, and
    of these the one that reboots."""
    if not os.environ.get("KILN_EXPECT"):
        return
    expect = harness.read_expectations()
    kept = [item for item in items if item.path.parts[-3:-1] != _CHECKS or belongs(item, expect)]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = sorted(
        kept,
        key=lambda item: (
            item.get_closest_marker("exercise") is not None,
            item.path.stem == "test_reboot",
        ),
    )
