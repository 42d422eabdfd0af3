"""Each Packer of this machine that can be used."""

from __future__ import annotations

import pytest

from devel import packers
from kiln.packer.program import Packer


@pytest.fixture(params=packers.usable() or [None], ids=str)
def real(request: pytest.FixtureRequest) -> Packer:
    if request.param is None:
        pytest.skip("needs Packer: there is none")
    found: Packer = request.param
    return found
