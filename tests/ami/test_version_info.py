"""/etc/kiln/version-info.json matches this machine."""

import pytest
from expectations import ARCHIVE, recorded

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


def test_it_names_the_drivers_source(recipe, version_info):
    assert recorded(version_info, "nvidia-driver")["version"] == recipe["driver"]
    runfiles = [entry["version"] for entry in version_info["runfiles"]]
    assert runfiles == ([recipe["driver"]] if recipe["driver_source"] == "runfile" else [])


def test_every_component_of_the_recipe_left_a_record(recipe, version_info):
    silent = {"version-info", "cleanup", "hygiene"}
    # Each names at least its component.
    records = {name for name, record in version_info["components"].items() if len(record) > 1}
    assert set(recipe["components"]) - silent - records == set()


def test_every_download_has_its_checksum(version_info):
    assert version_info["downloads"], "no download was recorded"
    for entry in version_info["downloads"]:
        assert len(entry["sha256"]) == 64, entry["url"]
        assert "latest" not in entry["url"], f"{entry['url']} is not pinned"
