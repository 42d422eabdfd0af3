"""What the product knows about instance types."""

import re
from collections.abc import Iterator

import pytest
import yaml

from kiln import facts
from kiln.base.errors import KilnError, nearest
from kiln.base.paths import KNOWLEDGE, ROOT
from lab.rootfs import distros


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
        if kind.mig:
            assert kind.product == mig[kind.gpu]["product"]


def test_a_wrong_size_gets_the_sizes_of_its_family():
    with pytest.raises(KilnError, match=r"p5\.49xlarge is not a GPU instance type") as error:
        facts.instance("p5.49xlarge")
    sizes = [kind.type for kind in facts.instances().values() if kind.family == "p5"]
    assert {"p5.4xlarge", "p5.48xlarge"} <= set(sizes)
    assert error.value.hint.endswith(f"Known: {', '.join(sorted(sizes))}")
    assert error.value.exit_status == 2


def test_versions_in_the_tables_are_text():
    assert facts.instance("p6-b200.48xlarge").compute_capability == "10.0"


def test_a_wrong_size_in_capitals_is_understood():
    with pytest.raises(KilnError) as error:
        facts.instance("P5.48XLARGE")
    assert error.value.hint.startswith("did you mean 'p5.48xlarge'?")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("amd64", "x86_64"), ("aarch64", "arm64"), ("X86_64", "x86_64"), (" ARM64", "arm64")],
)
def test_a_processor_under_its_other_name_is_the_same_processor(wrong, meant):
    assert nearest(wrong, ["arm64", "x86_64"]) == meant


def test_every_driver_the_facts_mention_is_a_release_they_know():
    known = {v for item in facts.branches().values() for v in (*item.versions, *item.betas)}
    named = set()
    for name in ("cuda", "distros", "drivers", "kernel_builds", "packages", "services"):
        for value in _texts(facts.table(name)):
            named |= set(re.findall(r"(?<![\d.])[456]\d\d\.\d{2,3}\.\d{2}(?![\d.])", value))
    assert len(named) > 100
    assert named - known == set()


@pytest.mark.parametrize("folder", [KNOWLEDGE, ROOT / "lab" / "standins" / "nvidia_smi" / "data"])
def test_no_comma_cuts_a_value_short(folder):
    # {source: the CUDA toolkit, driver and architecture matrix} is a source and an empty key.
    for path in folder.glob("*.yaml"):
        data = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        assert [key for key in _empty_keys(data) if set(" )") & set(key)] == [], path.name


def _texts(data: object) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from (*_texts(key), *_texts(value))
    elif isinstance(data, list):
        for value in data:
            yield from _texts(value)
    elif data is not None:
        yield str(data)


def _empty_keys(data: object) -> Iterator[str]:
    if isinstance(data, dict):
        yield from (str(key) for key, value in data.items() if value is None)
        for value in data.values():
            yield from _empty_keys(value)
    elif isinstance(data, list):
        for value in data:
            yield from _empty_keys(value)


@pytest.mark.parametrize(
    ("installer", "arch", "distro", "brings"),
    [
        ("1.37.0", "x86_64", "al2", False),
        ("1.38.0", "x86_64", "al2", True),
        ("1.39.0", "arm64", "al2023", False),
        ("1.40.0", "arm64", "al2023", True),
        ("1.51.0", "arm64", "debian12", False),
    ],
)
def test_an_efa_installer_brings_its_plugin_by_processor_and_distribution(
    installer, arch, distro, brings
):
    assert facts.bundles_plugin(installer, arch, distro) is brings


def test_a_distribution_that_amis_are_built_on_has_all_that_a_bake_needs():
    needed = {"name", "family", "package_manager", "ssh_user", "root_device", "cuda_repo"}
    names = facts.distro_names(with_parents=True)
    assert "al2" in names
    assert "rocky9" not in names
    for name in names:
        assert needed <= set(facts.distro(name)), name


def test_the_lab_takes_a_distribution_s_name_family_and_user_from_the_facts():
    for name in distros.ids():
        known, spec = facts.distro(name), distros.spec(name)
        assert {spec[key] == known[key] for key in ("name", "family", "ssh_user")} == {True}
    assert distros.spec("al2")["os_release"]["SUPPORT_END"] == "2026-06-30"
    assert "SUPPORT_END" not in distros.spec("ubuntu2404")["os_release"]
