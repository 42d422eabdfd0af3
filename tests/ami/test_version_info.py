"""/etc/kiln/version-info.json matches this machine."""

import pytest
from expectations import ARCHIVE

pytestmark = pytest.mark.bake


def keys(packages):
    return {
        (p["manager"], p["name"], p["epoch"], p["version"], p["release"], p["arch"])
        for p in packages
    }


def test_it_names_every_installed_package_and_no_other(machine, version_info):
    baked, now = keys(version_info["packages"]), keys(machine["now"]["packages"])
    assert now, "no package was seen"
    # A key that rpm imports shows as a package; nothing else may differ.
    assert {p for p in baked ^ now if p[1] != "gpg-pubkey"} == set()


def test_it_names_every_kernel_module_as_it_is(machine, recipe, version_info):
    baked, now = version_info["modules"], machine["now"]["modules"]
    assert now, "no kernel module was seen"
    if recipe["kernel_module"] == "both":
        # At boot one kind of module may replace the other; test_nvidia_driver.py checks which.
        kept = {(m["name"], m["srcversion"]) for m in now if m["path"].startswith(ARCHIVE)}
        baked, now = as_one_of(kept, baked), as_one_of(kept, now)
    assert baked == now


def as_one_of(kept, modules):
    """The modules, with what is in place and of either kind known by that alone."""
    return [
        {"path": m["path"], "of": "either kind"} if (m["name"], m["srcversion"]) in kept else m
        for m in modules
    ]
