"""EFA: what the installer of the recipe's version installed."""

import pytest
from expectations import recorded


@pytest.mark.bake
def test_the_installers_own_list_names_its_version(machine, recipe):
    efa = machine["now"]["efa"]
    assert efa, "/opt/amazon/efa_installed_packages is missing"
    assert efa["installer"] == recipe["efa"]


@pytest.mark.bake
def test_libfabric_answers(machine, version_info):
    answer = machine["commands"]["fi_info"]
    assert answer["rc"] == 0, answer["out"].strip()
    assert recorded(version_info, "efa")["libfabric"] in answer["out"]


@pytest.mark.bake
def test_the_archive_was_the_one_that_is_recorded(recipe, version_info):
    if recorded(version_info, "efa").get("origin") == "parent":
        pytest.skip("the parent AMI brought this version: nothing was downloaded")
    entries = [d for d in version_info["downloads"] if d["component"] == "efa"]
    archives = [
        d for d in entries if d["url"].endswith(f"/aws-efa-installer-{recipe['efa']}.tar.gz")
    ]
    assert len(archives) == 1, f"downloads.json names {len(archives)} EFA installers"
    assert len(archives[0]["sha256"]) == 64


@pytest.mark.boot
def test_every_efa_interface_of_the_instance_type_is_there(machine, expect):
    if not (expect["gpu"] and expect["gpu"]["efa"]):
        pytest.skip(f"{expect['instance_type']} has no EFA")
    if machine["boot"]["container"]:
        pytest.skip("a lab guest has no EFA device")
    assert "efa" in machine["modules_loaded"]
