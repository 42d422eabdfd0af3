"""What the product knows about instance types."""

import pytest

from kiln import facts
from kiln.errors import KilnError


def test_an_nvswitch_instance_says_so():
    p5 = facts.instance("p5.48xlarge")
    assert (p5.gpu_count, p5.efa_interfaces, p5.nvswitch, p5.mig) == (8, 32, True, True)
    assert not facts.instance("p5.4xlarge").nvswitch


def test_a_fractional_gpu_counts_no_whole_gpu():
    g6f = facts.instance("g6f.xlarge")
    assert g6f.fractional
    assert g6f.gpu_count == 0
    assert g6f.gpu_memory_mib < facts.instance("g6.xlarge").gpu_memory_mib


def test_every_whole_gpu_type_has_a_gpu_and_an_architecture():
    for kind in facts.instances().values():
        assert kind.fractional or kind.gpu_count > 0, kind.type
        assert kind.gpu_arch
        assert kind.source
        assert kind.arch in {"x86_64", "arm64"}


def test_a_mig_capable_gpu_is_named_as_in_the_mig_table():
    mig = {entry["gpu"]: entry for entry in facts.table("mig")["gpus"]}
    for kind in facts.instances().values():
        assert (kind.gpu in mig) == kind.mig, kind.type
        if kind.mig and mig[kind.gpu]["instance_types"]:
            assert kind.type in mig[kind.gpu]["instance_types"]
            assert kind.product == mig[kind.gpu]["product"]


def test_a_wrong_size_gets_the_sizes_of_its_family():
    with pytest.raises(KilnError, match=r"p5\.49xlarge is not a GPU instance type") as error:
        facts.instance("p5.49xlarge")
    assert error.value.hint == "p5 has: p5.4xlarge, p5.48xlarge"
    assert error.value.exit_code == 2


def test_versions_in_the_tables_are_text():
    assert facts.instance("p6-b200.48xlarge").compute_capability == "10.0"
