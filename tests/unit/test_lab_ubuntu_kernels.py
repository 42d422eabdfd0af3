"""The lab's kernels of Ubuntu are those of Ubuntu's archive, revision included."""

from __future__ import annotations

import pytest

from kiln.facts.indexes import recorded_index
from lab.packages import system


@pytest.mark.parametrize("distro", ["ubuntu2004", "ubuntu2204", "ubuntu2404"])
def test_a_kernel_that_the_recorded_index_has_too_is_at_the_same_revision(distro: str) -> None:
    index = recorded_index(distro, "x86_64", "ubuntu")
    assert index is not None
    recorded = {_abi(version): version for version in index.versions("linux-aws")}
    kernels = [p.version for p in system.ubuntu(distro, "x86_64") if p.name == "linux-aws"]
    both = [version for version in kernels if _abi(version) in recorded]
    assert both
    assert both == [recorded[_abi(version)] for version in both]


def _abi(version: str) -> tuple[str, ...]:
    """Release and build of a meta package's version: 7.0.0-1017.18 and 7.0.0.1017.18 are 1017."""
    return tuple(version.replace("-", ".").split(".")[:4])
