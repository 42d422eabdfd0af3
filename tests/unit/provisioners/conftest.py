"""A machine for the provisioners, and a vendor's signed file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.provisioners.machine import Machine, signed_files


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="session")
def signed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return signed_files(tmp_path_factory.mktemp("gnupg"))
