"""NCCL's EFA plugin, built from source, found by the loader."""

import pytest
from expectations import recorded

pytestmark = pytest.mark.bake


def test_the_loader_finds_it(machine, version_info):
    plugin = recorded(version_info, "aws-ofi-nccl")["plugin"]
    result = machine["now"]["paths"].get("libnccl-net", [])
    folder = plugin.rsplit("/", 1)[0]
    assert any(path.startswith(folder) for path in result), f"{plugin} is not in the loader's cache"
