"""What the product knows about instance types, drivers and distributions."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kiln import facts
from kiln.base.errors import KilnError, nearest


def test_instance_types_have_the_hardware_of_aws() -> None:
    p5 = facts.instance("p5.48xlarge")
    assert (p5.gpu_count, p5.efa_interfaces, p5.nvswitch, p5.mig) == (8, 32, True, True)
    assert not facts.instance("p5.4xlarge").nvswitch
    g6f = facts.instance("g6f.xlarge")
    assert (g6f.fractional, g6f.gpu_count) == (True, 0)
    assert g6f.gpu_memory_mib < facts.instance("g6.xlarge").gpu_memory_mib
    assert facts.instance("p6-b200.48xlarge").compute_capability == "10.0"


def test_every_instance_type_is_complete() -> None:
    mig = {entry["gpu"]: entry for entry in facts.table("mig")["gpus"]}
    for kind in facts.instances().values():
        assert kind.fractional or kind.gpu_count > 0, kind.type
        assert kind.gpu_arch and kind.source and kind.arch in {"x86_64", "arm64"}, kind.type
        assert (kind.gpu in mig) == kind.mig, kind.type
        assert not kind.mig or kind.product == mig[kind.gpu]["product"]


def test_wrong_size_gets_the_sizes_of_its_family() -> None:
    with pytest.raises(KilnError, match=r"p5\.49xlarge is not a GPU instance type") as error:
        facts.instance("p5.49xlarge")
    sizes = [kind.type for kind in facts.instances().values() if kind.family == "p5"]
    assert set(sizes) == {"p5.4xlarge", "p5.48xlarge"}
    assert error.value.hint.endswith("Known: p5.4xlarge, p5.48xlarge")
    assert error.value.exit_status == 2
    with pytest.raises(KilnError) as error:
        facts.instance("P5.48XLARGE")
    assert error.value.hint.startswith("did you mean 'p5.48xlarge'?")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("amd64", "x86_64"), ("aarch64", "arm64"), ("X86_64", "x86_64"), (" ARM64", "arm64")],
)
def test_processor_is_known_by_its_other_names(wrong: str, meant: str) -> None:
    assert nearest(wrong, ["arm64", "x86_64"]) == meant


def test_every_driver_in_the_facts_is_a_known_release() -> None:
    known = {v for item in facts.branches().values() for v in (*item.versions, *item.betas)}
    named = set()
    for name in ("cuda", "distros", "drivers", "kernel_builds", "packages", "services"):
        for value in _texts(facts.table(name)):
            named |= set(re.findall(r"(?<![\d.])[456]\d\d\.\d{2,3}\.\d{2}(?![\d.])", value))
    assert len(named) > 100
    assert named - known == set()


def _texts(data: object) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from (*_texts(key), *_texts(value))
    elif isinstance(data, list):
        for value in data:
            yield from _texts(value)
    elif data is not None:
        yield str(data)


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
def test_efa_installer_brings_its_plugin(
    installer: str, arch: str, distro: str, brings: bool
) -> None:
    assert facts.bundles_plugin(installer, arch, distro) is brings
