"""Components: what a recipe makes each provisioner install, fetch and write."""

from __future__ import annotations

from typing import Any

import pytest

from kiln import components, facts
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.components import Step
from kiln.components.component import packages
from kiln.matrix.load import load_recipes
from tests.unit.rows import every_version

RECIPES = load_recipes()


def recipe(distro: str, arch: str = "x86_64", **fields: Any) -> Recipe:
    """A recipe of the matrix for that distribution, with some fields changed."""
    base = next(recipe for recipe in RECIPES if recipe.distro.id == distro)
    return base.changed(arch=arch, **fields)


def step(component: str, distro: str, arch: str = "x86_64", **fields: Any) -> Step:
    return components.get(component).for_recipe(recipe(distro, arch, **fields))


def urls(component: str, distro: str, arch: str = "x86_64", **fields: Any) -> dict[str, str]:
    downloads = step(component, distro, arch, **fields).downloads
    return {download.env: download.url for download in downloads}


# ------------------------------------------------------------------- all of them


def test_no_component_gives_an_unfilled_name() -> None:
    for row in RECIPES:
        for name in row.components:
            made = components.get(name).for_recipe(row)
            texts = [*made.env.values(), *(download.url for download in made.downloads)]
            assert not [text for text in texts if "{" in text or "None" in text]


def test_table_of_downloads_has_what_components_fetch() -> None:
    full = every_version()
    made = [step(name, "debian12", driver_source="runfile", **full) for name in components.names()]
    fetched = {download.env for each in made for download in each.downloads}
    assert fetched == set(facts.table("downloads")["downloads"])


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


# ------------------------------------------------------------------- the scripts' variables

AL_DRIVER = "nvidia-driver={0} nvidia-driver-cuda={0} nvidia-persistenced={0}"
TOOLKIT = (
    "libnvidia-container1=1.20.0 libnvidia-container-tools=1.20.0 "
    "nvidia-container-toolkit-base=1.20.0 nvidia-container-toolkit=1.20.0"
)


def driver(distro: str, source: str, module: str, version: str) -> dict[str, str]:
    return {
        "distro": distro, "driver_source": source, "kernel_module": module, "driver": version
    }  # fmt: skip


def of_driver(distro: str, source: str, version: str) -> dict[str, str]:
    return {"distro": distro, "driver_source": source, "driver": version}


# Variable of a component's script: (the recipe's fields, its value) …
VARIABLES: dict[tuple[str, str], list[tuple[dict[str, Any], str]]] = {
    # Only for a parent AMI without a kernel.
    ("kernel", "KERNEL_DEFAULT_PACKAGE"): [
        ({"distro": "al2"}, "kernel"),
        ({"distro": "ubuntu2204", "arch": "arm64"}, "linux-aws"),
        ({"distro": "debian12", "arch": "arm64"}, "linux-image-cloud-arm64"),
    ],
    ("kernel", "KERNEL_COMPILER_PACKAGE"): [
        ({"distro": "al2"}, "gcc10"),
        ({"distro": "al2023"}, ""),
    ],
    ("kernel", "KERNEL_PACKAGE"): [
        ({"distro": "al2023", "kernel": "kernel6.12"}, "kernel6.12"),
        ({"distro": "al2023"}, ""),
    ],
    ("nvidia-driver", "NVIDIA_DRIVER_PACKAGES"): [
        (driver("al2023", "repo", "open", "580.178.04"),
         "kmod-nvidia-open-dkms=580.178.04 " + AL_DRIVER.format("580.178.04")),
        (driver("ubuntu2404", "repo", "open", "580.178.04"), "nvidia-open-580=580.178.04"),
        (driver("ubuntu2404", "repo", "open", "590.48.01"), "nvidia-open=590.48.01"),
        (driver("debian12", "repo", "proprietary", "595.112.07"), "cuda-drivers=595.112.07"),
        (driver("ubuntu2204", "repo", "proprietary", "570.211.01"), "cuda-drivers-570=570.211.01"),
        (driver("ubuntu2204", "distro", "open", "590.48.01"),
         "nvidia-dkms-590-server-open=590.48.01 nvidia-driver-590-server-open=590.48.01"),
        (driver("debian12", "distro", "proprietary", "535.309.01"),
         "nvidia-kernel-dkms=535.309.01 nvidia-driver-bin=535.309.01 nvidia-smi=535.309.01 "
         "libcuda1=535.309.01 nvidia-persistenced"),
        # Debian's names do not hold for Amazon's own archive.
        (driver("al2023", "distro", "open", "580.167.08"),
         "kmod-nvidia-open-dkms=580.167.08 " + AL_DRIVER.format("580.167.08")),
        (driver("al2", "runfile", "proprietary", "510.47.03"), ""),
    ],
    ("nvidia-driver", "NVIDIA_DRIVER_STREAM"): [
        ({"distro": "al2023", "kernel_module": "proprietary"}, "580-dkms"),
        ({"distro": "al2023", "kernel_module": "both"}, "580-open"),
    ],
    # The proprietary module of an image with both.
    ("nvidia-driver", "NVIDIA_OTHER_PACKAGES"): [
        (driver("al2023", "repo", "both", "580.178.04"), "kmod-nvidia-latest-dkms=580.178.04"),
        (driver("ubuntu2404", "repo", "both", "580.178.04"),
         "nvidia-kernel-source-580=580.178.04 nvidia-dkms-580=580.178.04"),
        (driver("ubuntu2404", "distro", "both", "590.48.01"),
         "nvidia-kernel-source-590-server=590.48.01 nvidia-dkms-590-server=590.48.01"),
        (driver("debian12", "repo", "both", "580.178.04"), "nvidia-kernel-dkms=580.178.04"),
        (driver("al2023", "repo", "open", "580.178.04"), ""),
    ],
    ("nvidia-driver", "NVIDIA_OTHER_STREAM"): [
        (driver("al2023", "runfile", "both", "580.178.04"), "580-dkms"),
        (driver("al2023", "repo", "open", "580.178.04"), ""),
    ],
    ("nvidia-fabricmanager", "NVIDIA_FABRICMANAGER_PACKAGES"): [
        (of_driver("al2023", "repo", "570.211.01"), "nvidia-fabric-manager=570.211.01"),
        (of_driver("ubuntu2404", "repo", "570.211.01"), "nvidia-fabricmanager-570=570.211.01"),
        (of_driver("ubuntu2404", "repo", "590.48.01"), "nvidia-fabricmanager=590.48.01"),
        (of_driver("ubuntu2404", "distro", "590.48.01"), "nvidia-fabricmanager-590=590.48.01"),
        # NVIDIA's archive instead.
        (of_driver("debian12", "distro", "535.309.01"), ""),
    ],
    ("nvidia-fabricmanager", "NVLSM_PACKAGES"): [
        ({"distro": "al2023", "nvlsm": "2025.10.14"}, "nvlsm=2025.10.14"),
        ({"distro": "al2023", "nvlsm": None}, ""),
    ],
    ("nvidia-fabricmanager", "NVLSM_OS_PACKAGES"): [
        ({"distro": "al2023", "nvlsm": "2025.10.14"}, "libibumad infiniband-diags"),
        ({"distro": "ubuntu2404", "nvlsm": "2025.10.14"}, "libibumad3 infiniband-diags"),
        ({"distro": "al2023", "nvlsm": None}, ""),
    ],
    ("nvidia-imex", "NVIDIA_IMEX_PACKAGES"): [
        (of_driver("al2023", "repo", "570.211.01"), "nvidia-imex-570=570.211.01"),
        (of_driver("ubuntu2404", "repo", "580.178.04"), "nvidia-imex=580.178.04"),
        (of_driver("ubuntu2404", "distro", "595.91.07"), "nvidia-imex-595=595.91.07"),
    ],
    ("nvidia-imex", "NVIDIA_IMEX_OWNER"): [
        ({"distro": "al2023", "flavor": "base"}, "host"),
        ({"distro": "al2023", "flavor": "eks"}, "dra"),
    ],
    ("cuda", "CUDA_PACKAGES"): [({"distro": "al2", "cuda": "11.6.2"}, "cuda-toolkit-11-6=11.6.2")],
    ("cudnn", "CUDNN_PACKAGES"): [
        ({"distro": "al2", "cudnn": "8.5.0.96", "cuda": "11.6.2"},
         "libcudnn8=8.5.0.96@cuda11 libcudnn8-devel=8.5.0.96@cuda11"),
        ({"distro": "ubuntu2404", "cudnn": "9.24.1.1", "cuda": "13.0.2"},
         "libcudnn9-cuda-13=9.24.1.1 libcudnn9-dev-cuda-13=9.24.1.1 "
         "libcudnn9-headers-cuda-13=9.24.1.1"),
    ],
    ("nccl", "NCCL_PACKAGES"): [
        ({"distro": "al2", "nccl": "2.12.7", "cuda": "11.6.2"},
         "libnccl=2.12.7@cuda11.6 libnccl-devel=2.12.7@cuda11.6"),
        ({"distro": "ubuntu2404", "nccl": "2.28.9", "cuda": "13.0.2"},
         "libnccl2=2.28.9@cuda13.0 libnccl-dev=2.28.9@cuda13.0"),
    ],
    # The installer's own plugin is skipped where another is built; arm64 has it from 1.40.0 on.
    ("efa", "EFA_SKIP_PLUGIN"): [
        ({"distro": "al2023", "efa": "1.37.0", "ofi_nccl": "1.9.2"}, ""),
        ({"distro": "al2023", "efa": "1.38.0", "ofi_nccl": "1.9.2"}, "yes"),
        ({"distro": "al2023", "efa": "1.38.0", "ofi_nccl": None}, ""),
        ({"distro": "al2023", "arch": "arm64", "efa": "1.39.0", "ofi_nccl": "1.9.2"}, ""),
        ({"distro": "al2023", "arch": "arm64", "efa": "1.40.0", "ofi_nccl": "1.9.2"}, "yes"),
    ],
    ("dcgm", "DCGM_PACKAGES"): [
        ({"distro": "al2023", "dcgm": "3.3.9", "driver": "550.163.01"},
         "datacenter-gpu-manager=3.3.9"),
    ],
    ("container-toolkit", "CONTAINER_TOOLKIT_PACKAGES"): [
        ({"distro": "debian12", "container_toolkit": "1.20.0"}, TOOLKIT),
    ],
    ("container-toolkit", "CONTAINER_TOOLKIT_REPO_URL"): [
        ({"distro": "al2023"}, "https://nvidia.github.io/libnvidia-container/stable/rpm"),
        ({"distro": "debian12", "container_toolkit": "1.20.0"},
         "https://nvidia.github.io/libnvidia-container/stable/deb"),
    ],
    # A topic of Amazon Linux 2's extras, or FSx's repository, which is for Ubuntu.
    ("lustre-client", "LUSTRE_TOPIC"): [({"distro": "al2"}, "lustre"), ({"distro": "al2023"}, "")],
    ("lustre-client", "LUSTRE_SUITE"): [
        ({"distro": "al2"}, ""),
        ({"distro": "ubuntu2204"}, "jammy"),
    ],
}  # fmt: skip
CASES = [(*place, fields, text) for place, cases in VARIABLES.items() for fields, text in cases]


@pytest.mark.parametrize(("component", "variable", "fields", "text"), CASES)
def test_script_gets_the_archives_package_names(
    component: str, variable: str, fields: dict[str, Any], text: str
) -> None:
    assert step(component, **fields).env[variable] == text


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


# ------------------------------------------------------------------- downloads

REPOS = "https://developer.download.nvidia.com/compute/cuda/repos"
EFA = "https://efa-installer.amazonaws.com/aws-efa-installer"
AGENT = "https://amazoncloudwatch-agent.s3.amazonaws.com"
OFI = "https://github.com/aws/aws-ofi-nccl/releases/download"
RUNFILE = "https://us.download.nvidia.com/tesla/510.47.03/NVIDIA-Linux-{}-510.47.03.run"
OLD = {"driver": "510.47.03", "driver_source": "runfile"}


def agent(path: str) -> dict[str, str]:
    url = f"{AGENT}/{path.format('amazon-cloudwatch-agent')}"
    return {
        "CLOUDWATCH_AGENT": url,
        "CLOUDWATCH_AGENT_SIGNATURE": f"{url}.sig",
        "CLOUDWATCH_AGENT_KEY": f"{AGENT}/assets/amazon-cloudwatch-agent.gpg",
    }


@pytest.mark.parametrize(
    ("component", "fields", "expected"),
    [
        ("nvidia-repo", {"distro": "al2"}, {"CUDA_REPO_KEY": f"{REPOS}/rhel7/x86_64/D42D0685.pub"}),
        ("nvidia-repo", {"distro": "ubuntu2404", "arch": "arm64"},
         {"CUDA_REPO_KEY": f"{REPOS}/ubuntu2404/sbsa/3bf863cc.pub"}),
        ("nvidia-driver", {"distro": "al2", **OLD}, {"NVIDIA_DRIVER": RUNFILE.format("x86_64")}),
        ("nvidia-driver", {"distro": "al2", "arch": "arm64", **OLD},
         {"NVIDIA_DRIVER": RUNFILE.format("aarch64")}),
        ("nvidia-driver", {"distro": "al2023", "driver_source": "repo"}, {}),
        ("efa", {"distro": "al2023", "efa": "1.51.0"},
         {"EFA_INSTALLER": f"{EFA}-1.51.0.tar.gz", "EFA_SIGNATURE": f"{EFA}-1.51.0.tar.gz.sig",
          "EFA_KEY": f"{EFA}.key"}),
        ("aws-ofi-nccl", {"distro": "al2", "ofi_nccl": "1.13.2"},
         {"AWS_OFI_NCCL": f"{OFI}/v1.13.2-aws/aws-ofi-nccl-1.13.2-aws.tar.gz"}),
        ("aws-ofi-nccl", {"distro": "al2", "ofi_nccl": "1.14.0"},
         {"AWS_OFI_NCCL": f"{OFI}/v1.14.0/aws-ofi-nccl-1.14.0.tar.gz"}),
        ("gdrcopy", {"distro": "al2023", "gdrcopy": "2.6"},
         {"GDRCOPY": "https://github.com/NVIDIA/gdrcopy/archive/refs/tags/v2.6.tar.gz"}),
        ("container-toolkit", {"distro": "al2023"},
         {"CONTAINER_TOOLKIT_KEY": "https://nvidia.github.io/libnvidia-container/gpgkey"}),
        ("ssm-agent", {"distro": "ubuntu2404"}, {}),
        ("cloudwatch-agent", {"distro": "al2", "cloudwatch_agent": "1.300072.0"},
         agent("amazon_linux/amd64/1.300072.0b1766/{}.rpm")),
        ("cloudwatch-agent", {"distro": "debian12", "cloudwatch_agent": "1.300031.0b313"},
         agent("debian/amd64/1.300031.0b313/{}.deb")),
    ],
)  # fmt: skip
def test_component_downloads_what_the_recipe_asks_for(
    component: str, fields: dict[str, Any], expected: dict[str, str]
) -> None:
    assert urls(component, **fields) == expected


@pytest.mark.parametrize(("arch", "platform"), [("x86_64", "x86_64"), ("arm64", "sbsa")])
def test_fabric_manager_without_package_is_an_archive(arch: str, platform: str) -> None:
    fields = of_driver("ubuntu2204", "runfile", "535.309.01")
    (url,) = urls("nvidia-fabricmanager", arch=arch, **fields).values()
    name = f"fabricmanager-linux-{platform}-535.309.01-archive.tar.xz"
    assert url.endswith(f"/linux-{platform}/{name}")


@pytest.mark.parametrize(
    ("distro", "cuda_version", "version"),
    [("al2", "12.4.1", "2.13.6"), ("al2023", "12.9.1", "2.17.6")],
)
def test_nccl_tests_release_builds_with_cuda(distro: str, cuda_version: str, version: str) -> None:
    (download,) = step("nccl-tests", distro, cuda=cuda_version).downloads
    assert download.version == version
    assert download.url.endswith(f"/v{version}.tar.gz")


@pytest.mark.parametrize(("arch", "machine"), [("x86_64", "amd64"), ("arm64", "arm64")])
def test_debians_ssm_agent_has_a_published_hash(arch: str, machine: str) -> None:
    (download,) = step("ssm-agent", "debian12", arch).downloads
    assert download.url.endswith(f"/{download.version}/debian_{machine}/amazon-ssm-agent.deb")
    assert facts.known_sha256(download.url)


@pytest.mark.parametrize(("distro", "keys"), [("al2023", []), ("ubuntu2204", ["LUSTRE_KEY"])])
def test_lustre_comes_from_distribution_or_fsx(distro: str, keys: list[str]) -> None:
    made = step("lustre-client", distro)
    assert bool(made.env["LUSTRE_REPO_URL"]) is bool(keys)
    assert [download.env for download in made.downloads] == keys


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
