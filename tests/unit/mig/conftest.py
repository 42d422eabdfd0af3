"""Machines for gpu-mig to work on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.mig.machine import Machine


@pytest.fixture
def machine_root(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("the stand-in lets only root change MIG")
    return tmp_path


@pytest.fixture
def p4d(machine_root: Path) -> Machine:
    return Machine(machine_root, "p4d.24xlarge")


@pytest.fixture
def p5(machine_root: Path) -> Machine:
    return Machine(machine_root, "p5.48xlarge")
