"""GDRCopy: library and module of one version."""

import pytest

pytestmark = pytest.mark.bake


def test_the_module_is_there_for_the_kernel_that_boots(machine, recipe, version_info):
    kernel = version_info["kernel"]["boots"]
    result = [
        m for m in machine["now"]["modules"] if (m["name"], m["kernel"]) == ("gdrdrv", kernel)
    ]
    assert len(result) == 1, f"{len(result)} gdrdrv modules for {kernel}"
    assert result[0]["version"].startswith(recipe["gdrcopy"])


def test_the_loader_finds_the_library(machine):
    assert machine["now"]["paths"].get("libgdrapi"), "libgdrapi.so.2 is not in the loader's cache"
