"""GDRCopy: library and module of one version."""

import re

import pytest


@pytest.mark.bake
def test_the_module_is_there_for_the_kernel_that_boots(machine, recipe, version_info):
    kernel = version_info["kernel"]["boots"]
    result = [
        m for m in machine["now"]["modules"] if (m["name"], m["kernel"]) == ("gdrdrv", kernel)
    ]
    assert len(result) == 1, f"{len(result)} gdrdrv modules for {kernel}"
    # The module knows only MAJOR.MINOR, DKMS the whole version.
    assert result[0]["version"] == ".".join(recipe["gdrcopy"].split(".")[:2])


@pytest.mark.bake
def test_dkms_built_the_module_of_the_recipes_version(machine, recipe, version_info):
    listed = machine["commands"]["dkms-gdrdrv"]["out"]
    version, kernel = (re.escape(t) for t in (recipe["gdrcopy"], version_info["kernel"]["boots"]))
    # 3.x writes gdrdrv/2.5.1, 2.x gdrdrv, 2.5.1.
    assert re.search(rf"^gdrdrv(/|, ){version}, {kernel}, .*: installed", listed, re.M), listed


@pytest.mark.boot
def test_every_user_may_open_its_device(machine, expect, gpu):
    if machine["boot"]["container"]:
        pytest.skip("a lab guest loads no modules and may not make a device")
    if expect.get("own_kernel") and "gdrdrv" not in machine["modules_loaded"]:
        pytest.skip("gdrdrv needs the driver, which does not load without a GPU")
    numbers = [line.split() for line in (machine["text"]["/proc/devices"] or "").splitlines()]
    node = machine["files"]["/dev/gdrdrv"]
    assert node, "there is no /dev/gdrdrv"
    assert node["mode"] == "0666"
    assert [str(node["major"]), "gdrdrv"] in numbers


@pytest.mark.bake
def test_the_loader_finds_the_library(machine):
    assert machine["now"]["paths"].get("libgdrapi"), "libgdrapi.so.2 is not in the loader's cache"
