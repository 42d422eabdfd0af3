"""nccl-tests: built with this image's libraries, and passing where GPUs can be used."""

import re

import pytest
from applies import only_if, recipe_has
from expectations import recorded

TESTS = ("all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf")


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


@only_if(lambda expect: not expect["recipe"].get("mig_config"))  # NCCL does not run on MIG slices
@pytest.mark.boot
@pytest.mark.exercise
def test_an_all_reduce_over_all_gpus_adds_up(host, expect, gpu, version_info):
    if expect["target"] == "lab":
        pytest.skip("the lab's stand-in of nccl-tests measures nothing")
    if not gpu["count"]:
        pytest.skip(f"{expect['instance_type']} has a slice of a GPU")
    test = f"{recorded(version_info, 'nccl-tests')['folder']}/all_reduce_perf"
    answer = host.run("timeout 300 %s -b 8 -e 32M -f 4 -g %s", test, str(gpu["count"]))
    assert answer.rc == 0, answer.stdout[-2000:] + answer.stderr[-2000:]
    assert re.search(r"Out of bounds values : 0 OK", answer.stdout), answer.stdout[-2000:]


def links(machine, version_info):
    """(path, what ldd says) of each test."""
    folder = recorded(version_info, "nccl-tests")["folder"]
    result = [(f"{folder}/{name}", machine["linked"][f"{folder}/{name}"]["out"]) for name in TESTS]
    assert result
    return result
