from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.lab.standin_guest import Guest


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Guest]:
    """Return what makes a guest: a p4d with driver 580 unless told otherwise."""

    def _make(
        instance_type: str = "p4d.24xlarge", driver: str = "580.173.02", **more: object
    ) -> Guest:
        return Guest(tmp_path, instance_type, driver, **more)

    return _make
