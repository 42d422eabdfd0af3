"""Components: what a recipe makes each provisioner install, fetch and write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kiln import components, facts
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.components import Step
from kiln.components.component import packages
from kiln.matrix.load import load_recipes

RECIPES = load_recipes()


def recipe(distro: str, arch: str = "x86_64", **fields: Any) -> Recipe:
    """A recipe of the matrix for that distribution, with some fields changed."""
    base = next(recipe for recipe in RECIPES if recipe.distro.id == distro)
    return base.changed(arch=arch, **fields)


def step(component: str, distro: str, arch: str = "x86_64", **fields: Any) -> Step:
    return components.get(component).for_recipe(recipe(distro, arch, **fields))


# ------------------------------------------------------------------- all of them


def test_no_component_gives_an_unfilled_name() -> None:
    for row in RECIPES:
        for name in row.components:
            made = components.get(name).for_recipe(row)
            texts = [*made.env.values(), *(download.url for download in made.downloads)]
            assert not [text for text in texts if "{" in text or "None" in text]


def test_package_missing_from_archive_is_an_error() -> None:
    with pytest.raises(KilnError, match="no package of nvidia-imex") as error:
        packages(recipe("debian12", driver_source="distro"), "nvidia-imex", "535.309.01")
    assert error.value.exit_status == 2


@pytest.mark.parametrize("name", ["nccl", "cudnn", "nccl-tests"])
def test_component_built_for_cuda_needs_cuda(name: str) -> None:
    with pytest.raises(KilnError, match="has no cuda") as error:
        step(name, "al2023", cuda=None)
    assert error.value.exit_status == 2


@pytest.mark.parametrize(
    ("component", "stack", "distro", "arch", "baked"),
    [
        ("nvidia-repo", {"driver_source": "distro"}, "debian12", "x86_64", False),
        ("nvidia-repo", {"driver_source": "runfile"}, "debian12", "x86_64", False),
        ("nvidia-repo", {"driver_source": "distro", "cuda": "12.2.2"}, "debian12", "x86_64", True),
        ("nvidia-repo", {"driver_source": "runfile", "dcgm": "3.3.9"}, "debian12", "x86_64", True),
        ("nvidia-repo", {"driver_source": None}, "debian12", "x86_64", True),
        # Only instances with an NVSwitch of their own run fabric manager.
        ("nvidia-fabricmanager", {}, "al2023", "x86_64", True),
        ("nvidia-fabricmanager", {}, "al2023", "arm64", False),
    ],
)
def test_component_is_baked_only_where_it_serves(
    component: str, stack: dict[str, Any], distro: str, arch: str, *, baked: bool
) -> None:
    chosen = components.selected({"driver": "535.309.01", **stack}, set(), distro, arch)
    assert (component in chosen) is baked


# ------------------------------------------------------------------- variables and downloads

STEPS = yaml.safe_load(Path(__file__).with_name("steps.yaml").read_text())
ENV = [(name, *case) for name, cases in STEPS["env"].items() for case in cases]
DOWNLOADS = [(name, *case) for name, cases in STEPS["downloads"].items() for case in cases]


@pytest.mark.parametrize(("component", "fields", "variable", "text"), ENV)
def test_script_gets_variable(
    component: str, fields: dict[str, Any], variable: str, text: str
) -> None:
    assert step(component, **fields).env[variable] == text


@pytest.mark.parametrize(("component", "fields", "expected"), DOWNLOADS)
def test_component_downloads(
    component: str, fields: dict[str, Any], expected: dict[str, str]
) -> None:
    made = step(component, **fields)
    assert {download.env: download.url for download in made.downloads} == expected


@pytest.mark.parametrize(
    ("driver_version", "major"), [("520.61.05", "11"), ("575.57.08", "12"), ("580.178.04", "13")]
)
def test_dcgm_is_for_the_drivers_cuda(driver_version: str, major: str) -> None:
    env = step("dcgm", "al2023", dcgm="4.6.0", driver=driver_version).env
    named = env["DCGM_PACKAGES"].split()
    assert f"datacenter-gpu-manager-4-cuda{major}=4.6.0" in named
    # Without them DCGM has no profiling metrics: apt installs nothing that is only recommended.
    assert "datacenter-gpu-manager-4-proprietary=4.6.0" in named
    assert f"datacenter-gpu-manager-4-proprietary-cuda{major}=4.6.0" in named


def test_dcgm_4_7_names_its_parts() -> None:
    old, new = (
        step("dcgm", "ubuntu2404", dcgm=dcgm, driver="595.112.07").env["DCGM_PACKAGES"]
        for dcgm in ("4.6.1", "4.7.0")
    )
    for part in ("nv-hostengine=4.7.0", "dcgmi=4.7.0", "datacenter-gpu-manager-4-module-health"):
        assert part in new
    assert "nv-hostengine" not in old


@pytest.mark.parametrize(("arch", "machine"), [("x86_64", "amd64"), ("arm64", "arm64")])
def test_debians_ssm_agent_has_a_published_hash(arch: str, machine: str) -> None:
    (download,) = step("ssm-agent", "debian12", arch).downloads
    assert download.url.endswith(f"/{download.version}/debian_{machine}/amazon-ssm-agent.deb")
    assert facts.known_sha256(download.url)


# ------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("flavor", "parameter"),
    [("base", "NVreg_CreateImexChannel0=1"), ("eks", "NVreg_CoherentGPUMemoryMode=driver")],
)
def test_imex_driver_parameter_of_the_flavor(flavor: str, parameter: str) -> None:
    made = step("nvidia-imex", "al2023", flavor=flavor, driver="595.91.07")
    (text,) = made.files.values()
    assert f"\noptions nvidia {parameter}\n" in text


@pytest.mark.parametrize(
    ("distro", "efa_version", "path", "line"),
    [
        # What Ubuntu 24.04's procps sets, and the most that Linux 5.11 takes by itself.
        ("ubuntu2404", None, "sysctl.d", "vm.max_map_count = 1048576"),
        ("ubuntu2404", None, "sysctl.d", "fs.inotify.max_user_watches = 1048576"),
        ("al2023", None, "security/limits.d", "*    - memlock unlimited"),
        ("al2023", None, "systemd/system.conf.d", "DefaultLimitMEMLOCK=infinity"),
        # systemd's own hard limit is 524288 from 240 on, and 4096 before.
        ("ubuntu2404", None, "security/limits.d", "root soft nofile  65536"),
        ("al2", None, "security/limits.d", "root - nofile  65536"),
        # Ranks may copy from each other only where EFA needs it.
        ("ubuntu2404", "1.51.0", "sysctl.d", "kernel.yama.ptrace_scope = 0"),
        ("ubuntu2404", None, "sysctl.d", "-kernel.yama.ptrace_scope = 0"),
        ("al2023", "1.51.0", "sysctl.d", "-kernel.yama.ptrace_scope = 0"),
    ],
)
def test_tuning_sets_a_line(distro: str, efa_version: str | None, path: str, line: str) -> None:
    text = step("tuning", distro, efa=efa_version).files[f"etc/{path}/60-kiln.conf"]
    assert (line.removeprefix("-") in text.splitlines()) is not line.startswith("-")
