"""EFA: what the installer of the recipe's version installed."""

import re

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


def require_interfaces(machine, expect):
    if machine["boot"]["container"]:
        pytest.skip("a lab guest has no EFA device")
    if not machine["efa_devices"].get("attached"):
        assert not expect["efa_attached"], "launched with an EFA interface, and none is on PCI"
        pytest.skip("no EFA interface is attached to this instance")


@pytest.mark.boot
def test_every_attached_efa_interface_has_its_driver(machine, expect):
    require_interfaces(machine, expect)
    devices = machine["efa_devices"]
    assert len(devices["driven"]) == devices["attached"], (
        f"{devices['attached']} attached, driven: {devices['driven']}; see `dmesg | grep efa`"
    )


@pytest.mark.boot
def test_libfabric_offers_the_efa_interfaces(machine, expect):
    require_interfaces(machine, expect)
    answer = machine["commands"]["efa-providers"]
    assert answer["rc"] == 0, f"fi_info -p efa: {answer['out'].strip()}"
    domains = set(re.findall(r"^ *domain: (\S+)-rdm$", answer["out"], re.MULTILINE))
    assert len(domains) == machine["efa_devices"]["attached"], f"libfabric offers {domains}"


@pytest.mark.boot
def test_efa_reaches_the_memory_of_gpus(machine, expect, gpu):
    require_interfaces(machine, expect)
    providers = machine["efa_devices"]["p2p"]
    if not providers:
        pytest.skip("this EFA driver names no peer memory: it has DMA-BUF alone")
    # "NVIDIA", or "NVIDIA peermem" by efa_nv_peermem.
    assert [name for name in providers if not name.startswith("NVIDIA")] == [], (
        "GPUDirect RDMA is off: load efa_nv_peermem after the driver"
    )
