"""nccl-tests: built with this image's libraries, and passing where GPUs can be used."""

import re

import pytest
from applies import only_if, recipe_has
from expectations import bus_bandwidth, providers, recorded, skip_in_lab

TESTS = ("all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf")

# GB/s of 8 GPUs behind an NVSwitch with 16 GiB (here 8: nccl-tests 2.13 has no room for more in
# 40 GB): what Azure's health checks ask of the same boards.
# https://github.com/Azure/azurehpc-health-checks conf/nd96asr_v4.conf, nd96amsr_a100_v4.conf and
# nd96isr_h100_v5.conf @7e6ac7796e4398d2a6b0b29ca39f1060f0a993cb, nd96isr_h200_v5.conf
# @13fa400b10f5cb8d900cf02ea0cdda958a2082b9. Nobody publishes one for B200 and B300.
BUS_BANDWIDTH = {"A100-SXM4": 228, "H100": 460, "H200": 431}


@pytest.mark.bake
def test_the_tests_are_there(machine, version_info):
    record = recorded(version_info, "nccl-tests")
    assert set(TESTS) <= set(record["tests"])
    for name in record["tests"]:
        facts = machine["files"][f"{record['folder']}/{name}"]
        assert facts, f"{name} is missing"
        assert facts["mode"] == "0755", name


@pytest.mark.bake
def test_they_find_nccl(machine, version_info):
    for path, linked in links(machine, version_info):
        assert re.search(r"libnccl\.so\S* => /", linked), f"{path}: {linked}"


@recipe_has("efa")  # whose installer brings Open MPI
@pytest.mark.bake
def test_they_find_open_mpi_where_efa_brought_it(machine, version_info):
    for path, linked in links(machine, version_info):
        assert re.search(r"libmpi\.so\S* => /opt/amazon/openmpi/", linked), f"{path}: {linked}"


whole_gpus = only_if(lambda expect: not expect["recipe"].get("mig_config"))  # NCCL needs them


def all_reduce(host, gpu, version_info, sizes):
    """What all_reduce_perf prints for these sizes, over all GPUs of the machine."""
    test = f"{recorded(version_info, 'nccl-tests')['folder']}/all_reduce_perf"
    answer = host.run(f"NCCL_DEBUG=INFO timeout 300 %s {sizes} -g %s", test, str(gpu["count"]))
    assert answer.rc == 0, answer.stdout[-2000:] + answer.stderr[-2000:]
    return answer.stdout


@pytest.fixture(scope="module")
def real_gpus(machine, expect, gpu):
    """The GPUs, where NCCL can use them."""
    skip_in_lab(machine, expect, "the lab's stand-in of nccl-tests measures nothing")
    if not gpu["count"]:
        pytest.skip(f"{expect['instance_type']} has a slice of a GPU")
    return gpu


@pytest.fixture(scope="module")
def swept(host, real_gpus, version_info):
    """What an all-reduce of many sizes prints."""
    return all_reduce(host, real_gpus, version_info, "-b 8 -e 32M -f 4")


@whole_gpus
@pytest.mark.boot
@pytest.mark.exercise
def test_an_all_reduce_over_all_gpus_adds_up(swept):
    assert re.search(r"Out of bounds values : 0 OK", swept), swept[-2000:]


@recipe_has("efa")
@whole_gpus
@pytest.mark.boot
@pytest.mark.exercise
def test_nccl_chooses_efa(machine, swept):
    if not machine["efa_devices"]["attached"]:
        pytest.skip("no EFA interface is attached to this instance")
    assert providers(swept) == {"efa"}, "NCCL does not load the EFA plugin: see `ldconfig -p`"


@whole_gpus
@pytest.mark.boot
@pytest.mark.exercise
def test_an_all_reduce_is_as_fast_as_nvlink_allows(host, real_gpus, version_info):
    floors = [floor for name, floor in BUS_BANDWIDTH.items() if name in real_gpus["name"]]
    if not real_gpus["nvswitch"] or not floors:
        pytest.skip(f"nobody publishes a floor for {real_gpus['name']} of this instance type")
    measured = []
    while len(measured) < 3 and (not measured or max(measured) < floors[0]):
        measured.append(bus_bandwidth(all_reduce(host, real_gpus, version_info, "-b 8G -e 8G")))
    assert max(measured) >= floors[0], (
        f"{measured} GB/s, not {floors[0]}: see `nvidia-smi nvlink -s` and the kernel log"
    )


def links(machine, version_info):
    """(path, what ldd says) of each test."""
    folder = recorded(version_info, "nccl-tests")["folder"]
    result = [(f"{folder}/{name}", machine["linked"][f"{folder}/{name}"]["out"]) for name in TESTS]
    assert result
    return result
