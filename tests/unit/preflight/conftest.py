"""The vendors of a row, for a test or for many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.preflight.vendor_site import Signer
from tests.unit.preflight.vendors import Vendors, serving


@pytest.fixture(scope="session")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signer]:
    made = Signer(tmp_path_factory.mktemp("signer") / "home")
    yield made
    made.close()


@pytest.fixture
def vendors(tmp_path: Path, signer: Signer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendors]:
    with serving(tmp_path, signer, monkeypatch) as served_here:
        yield served_here
