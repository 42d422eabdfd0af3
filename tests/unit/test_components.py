"""Components: what a recipe makes each provisioner install, fetch and write."""

from __future__ import annotations

from typing import Any

import pytest

from kiln import components, facts
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.components import Step
from kiln.components.component import Component, packages, system_of
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


@pytest.mark.parametrize("name", components.names())
def test_a_component_is_found_by_its_name(name: str) -> None:
    module = name.replace("-", "_")
    assert getattr(components, module).COMPONENT is components.get(name)


@pytest.mark.parametrize("row", RECIPES, ids=lambda row: row.name)
def test_no_component_of_a_row_gives_an_unfilled_name(row: Recipe) -> None:
    for name in row.components:
        made = components.get(name).for_recipe(row)
        texts = [*made.env.values(), *(download.url for download in made.downloads)]
        assert not [text for text in texts if "{" in text or "None" in text]


@pytest.mark.parametrize(
    ("name", "field"), [("nvidia-driver", "driver"), ("efa", "efa"), ("tuning", None)]
)
def test_a_finding_about_a_component_is_shown_at_the_field_that_requests_it(
    name: str, field: str | None
) -> None:
    assert components.get(name).request_field == field


def test_a_component_of_ones_own_is_not_the_drivers_because_of_its_name() -> None:
    assert Component(name="nvidia-tools", what="tools").request_field is None


def test_what_canonical_makes_is_ubuntu_whatever_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "distro", lambda _: {"vendor": "canonical"})
    assert system_of("noble", "debian") == "ubuntu"


def test_every_file_in_the_table_of_downloads_is_fetched_by_a_component() -> None:
    full = every_version()
    made = [step(name, "debian12", driver_source="runfile", **full) for name in components.names()]
    fetched = {download.env for each in made for download in each.downloads}
    assert fetched == set(facts.table("downloads")["downloads"])


def test_a_condition_that_no_table_knows_is_named_with_the_table() -> None:
    rows = [{"when": {"achive": "rpm"}, "names": []}]
    with pytest.raises(KilnError) as error:
        facts.first_match("packages.yaml", "nccl", rows, "1", {"archive": "rpm"})
    assert "packages.yaml: nccl: there is no condition 'achive'" in error.value.message
    assert "did you mean 'archive'" in error.value.hint


def test_a_placeholder_that_no_recipe_has_is_named_with_the_table() -> None:
    with pytest.raises(KilnError, match=r"downloads\.yaml: EFA_KEY: 'https://\{verison\}'"):
        facts.fill("downloads.yaml", "EFA_KEY", "https://{verison}", "1", {})


def test_an_archive_that_does_not_have_a_package_is_named() -> None:
    with pytest.raises(KilnError, match="no package of nvidia-imex") as error:
        packages(recipe("debian12", driver_source="distro"), "nvidia-imex", "535.309.01")
    assert error.value.exit_status == 2


@pytest.mark.parametrize("name", ["nccl", "cudnn", "nccl-tests"])
def test_what_is_built_for_a_cuda_is_refused_without_one(name: str) -> None:
    with pytest.raises(KilnError, match="has no cuda") as error:
        step(name, "al2023", cuda=None)
    assert error.value.exit_status == 2


# ------------------------------------------------------------------- kernel


@pytest.mark.parametrize(
    ("distro", "arch", "package"),
    [
        ("al2", "x86_64", "kernel"),
        ("ubuntu2204", "arm64", "linux-aws"),
        ("debian12", "x86_64", "linux-image-cloud-amd64"),
        ("debian12", "arm64", "linux-image-cloud-arm64"),
    ],
)
def test_a_parent_without_a_kernel_gets_the_distributions_cloud_kernel(
    distro: str, arch: str, package: str
) -> None:
    assert step("kernel", distro, arch).env["KERNEL_DEFAULT_PACKAGE"] == package


def test_only_amazon_linux_2_needs_another_compiler_for_its_kernel() -> None:
    assert step("kernel", "al2").env["KERNEL_COMPILER_PACKAGE"] == "gcc10"
    assert step("kernel", "al2023").env["KERNEL_COMPILER_PACKAGE"] == ""


def test_the_kernel_that_a_row_pins_reaches_the_script() -> None:
    assert step("kernel", "al2023", kernel="kernel6.12").env["KERNEL_PACKAGE"] == "kernel6.12"
    assert step("kernel", "al2023").env["KERNEL_PACKAGE"] == ""


# ------------------------------------------------------------------- nvidia-repo


@pytest.mark.parametrize(
    ("distro", "arch", "folder", "key"),
    [
        ("al2", "x86_64", "rhel7/x86_64", "D42D0685.pub"),
        ("al2023", "arm64", "amzn2023/sbsa", "D42D0685.pub"),
        ("ubuntu2404", "arm64", "ubuntu2404/sbsa", "3bf863cc.pub"),
        ("debian12", "x86_64", "debian12/x86_64", "3bf863cc.pub"),
    ],
)
def test_nvidias_repository_and_its_key_are_those_of_distribution_and_processor(
    distro: str, arch: str, folder: str, key: str
) -> None:
    url = f"https://developer.download.nvidia.com/compute/cuda/repos/{folder}"
    assert step("nvidia-repo", distro, arch).env["CUDA_REPO_URL"] == url
    assert urls("nvidia-repo", distro, arch) == {"CUDA_REPO_KEY": f"{url}/{key}"}


@pytest.mark.parametrize(
    ("stack", "baked"),
    [
        ({"driver": "535.309.01", "driver_source": "distro"}, False),
        ({"driver": "510.47.03", "driver_source": "runfile"}, False),
        ({"driver": "535.309.01", "driver_source": "distro", "cuda": "12.2.2"}, True),
        ({"driver": "510.47.03", "driver_source": "runfile", "dcgm": "3.3.9"}, True),
        ({"driver": "580.178.04", "driver_source": None}, True),
    ],
)
def test_nvidias_repository_is_on_an_image_only_when_something_comes_from_it(
    stack: dict[str, Any], baked: bool
) -> None:
    assert ("nvidia-repo" in components.selected(stack, set(), "debian12", "x86_64")) is baked


# ------------------------------------------------------------------- nvidia-driver


@pytest.mark.parametrize(
    ("distro", "source", "module", "driver", "names"),
    [
        (
            "al2023", "repo", "open", "580.178.04",
            "kmod-nvidia-open-dkms=580.178.04 nvidia-driver=580.178.04 "
            "nvidia-driver-cuda=580.178.04 nvidia-persistenced=580.178.04",
        ),
        (
            "al2023", "repo", "proprietary", "550.163.01",
            "kmod-nvidia-latest-dkms=550.163.01 nvidia-driver=550.163.01 "
            "nvidia-driver-cuda=550.163.01 nvidia-persistenced=550.163.01",
        ),
        ("ubuntu2404", "repo", "open", "580.178.04", "nvidia-open-580=580.178.04"),
        ("ubuntu2404", "repo", "open", "590.48.01", "nvidia-open=590.48.01"),
        ("debian12", "repo", "proprietary", "595.112.07", "cuda-drivers=595.112.07"),
        ("ubuntu2204", "repo", "proprietary", "570.211.01", "cuda-drivers-570=570.211.01"),
        (
            "ubuntu2204", "distro", "open", "590.48.01",
            "nvidia-dkms-590-server-open=590.48.01 nvidia-driver-590-server-open=590.48.01",
        ),
        (
            "debian12", "distro", "proprietary", "535.309.01",
            "nvidia-kernel-dkms=535.309.01 nvidia-driver-bin=535.309.01 nvidia-smi=535.309.01 "
            "libcuda1=535.309.01 nvidia-persistenced",
        ),
        # Debian's names do not hold for Amazon's own archive.
        (
            "al2023", "distro", "open", "580.167.08",
            "kmod-nvidia-open-dkms=580.167.08 nvidia-driver=580.167.08 "
            "nvidia-driver-cuda=580.167.08 nvidia-persistenced=580.167.08",
        ),
        ("al2", "runfile", "proprietary", "510.47.03", ""),
    ],
)  # fmt: skip
def test_the_drivers_packages_are_called_as_their_archive_calls_them(
    distro: str, source: str, module: str, driver: str, names: str
) -> None:
    made = step("nvidia-driver", distro, driver_source=source, kernel_module=module, driver=driver)
    assert made.env["NVIDIA_DRIVER_PACKAGES"] == names


@pytest.mark.parametrize("module", ["open", "proprietary"])
@pytest.mark.parametrize("distro", ["al2023", "ubuntu2404", "debian12"])
def test_every_distribution_names_its_own_driver_packages(distro: str, module: str) -> None:
    made = step(
        "nvidia-driver", distro, driver_source="distro", driver="580.178.04", kernel_module=module
    )
    words = made.env["NVIDIA_DRIVER_PACKAGES"].split()
    kernel_module = {
        ("al2023", "open"): "kmod-nvidia-open-dkms=580.178.04",
        ("al2023", "proprietary"): "kmod-nvidia-latest-dkms=580.178.04",
        ("ubuntu2404", "open"): "nvidia-dkms-580-server-open=580.178.04",
        ("ubuntu2404", "proprietary"): "nvidia-dkms-580-server=580.178.04",
        ("debian12", "open"): "nvidia-open-kernel-dkms=580.178.04",
        ("debian12", "proprietary"): "nvidia-kernel-dkms=580.178.04",
    }
    assert words[0] == kernel_module[distro, module]


def test_the_dnf_stream_brings_the_recipes_kernel_module() -> None:
    def stream(module: str) -> str:
        return step("nvidia-driver", "al2023", kernel_module=module).env["NVIDIA_DRIVER_STREAM"]

    assert stream("proprietary") == "580-dkms"
    assert stream("open") == stream("both") == "580-open"


@pytest.mark.parametrize(
    ("distro", "source", "driver", "stream", "names"),
    [
        ("al2023", "repo", "580.178.04", "580-dkms", "kmod-nvidia-latest-dkms=580.178.04"),
        (
            "ubuntu2404", "repo", "580.178.04", "580-dkms",
            "nvidia-kernel-source-580=580.178.04 nvidia-dkms-580=580.178.04",
        ),
        (
            "ubuntu2404", "repo", "590.48.01", "590-dkms",
            "nvidia-kernel-source=590.48.01 nvidia-dkms=590.48.01",
        ),
        (
            "ubuntu2404", "distro", "590.48.01", "590-dkms",
            "nvidia-kernel-source-590-server=590.48.01 nvidia-dkms-590-server=590.48.01",
        ),
        ("debian12", "repo", "580.178.04", "580-dkms", "nvidia-kernel-dkms=580.178.04"),
        ("al2023", "runfile", "580.178.04", "580-dkms", ""),
    ],
)  # fmt: skip
def test_an_image_with_both_modules_also_gets_the_proprietary_one(
    distro: str, source: str, driver: str, stream: str, names: str
) -> None:
    made = step("nvidia-driver", distro, driver_source=source, driver=driver, kernel_module="both")
    assert made.env["NVIDIA_OTHER_STREAM"] == stream
    assert made.env["NVIDIA_OTHER_PACKAGES"] == names


def test_an_image_with_one_module_gets_no_other() -> None:
    made = step("nvidia-driver", "al2023", kernel_module="open")
    assert (made.env["NVIDIA_OTHER_STREAM"], made.env["NVIDIA_OTHER_PACKAGES"]) == ("", "")


@pytest.mark.parametrize(("arch", "machine"), [("x86_64", "x86_64"), ("arm64", "aarch64")])
def test_a_runfile_driver_is_downloaded(arch: str, machine: str) -> None:
    fetched = urls("nvidia-driver", "al2", arch, driver="510.47.03", driver_source="runfile")
    base = "https://us.download.nvidia.com/tesla/510.47.03"
    assert fetched == {"NVIDIA_DRIVER": f"{base}/NVIDIA-Linux-{machine}-510.47.03.run"}


def test_a_packaged_driver_is_not_downloaded() -> None:
    assert urls("nvidia-driver", "al2023", driver_source="repo") == {}


# ------------------------------------------------------------------- nvidia-fabricmanager


@pytest.mark.parametrize(
    ("distro", "source", "driver", "name"),
    [
        ("al2023", "repo", "570.211.01", "nvidia-fabric-manager=570.211.01"),
        ("al2023", "repo", "580.178.04", "nvidia-fabricmanager=580.178.04"),
        ("ubuntu2404", "repo", "570.211.01", "nvidia-fabricmanager-570=570.211.01"),
        ("ubuntu2404", "repo", "580.178.04", "nvidia-fabricmanager=580.178.04"),
        ("ubuntu2404", "repo", "590.48.01", "nvidia-fabricmanager=590.48.01"),
        ("ubuntu2404", "distro", "590.48.01", "nvidia-fabricmanager-590=590.48.01"),
        ("debian12", "repo", "595.112.07", "nvidia-fabricmanager=595.112.07"),
    ],
)
def test_fabric_managers_package_is_called_as_its_archive_calls_it(
    distro: str, source: str, driver: str, name: str
) -> None:
    made = step("nvidia-fabricmanager", distro, driver_source=source, driver=driver)
    assert made.env["NVIDIA_FABRICMANAGER_PACKAGES"] == name
    assert made.downloads == ()


@pytest.mark.parametrize(
    ("distro", "arch", "source", "platform"),
    [
        ("al2", "x86_64", "runfile", "x86_64"),
        ("ubuntu2204", "arm64", "runfile", "sbsa"),
        ("debian12", "x86_64", "distro", "x86_64"),
    ],
)
def test_fabric_manager_without_a_package_is_nvidias_archive(
    distro: str, arch: str, source: str, platform: str
) -> None:
    made = step("nvidia-fabricmanager", distro, arch, driver_source=source, driver="535.309.01")
    assert made.env["NVIDIA_FABRICMANAGER_PACKAGES"] == ""
    (download,) = made.downloads
    assert download.url.endswith(
        f"/linux-{platform}/fabricmanager-linux-{platform}-535.309.01-archive.tar.xz"
    )


@pytest.mark.parametrize(("arch", "baked"), [("x86_64", True), ("arm64", False)])
def test_fabric_manager_is_for_processors_whose_instances_have_an_nvswitch(
    arch: str, *, baked: bool
) -> None:
    stack = {"driver": "580.178.04"}
    assert ("nvidia-fabricmanager" in components.selected(stack, set(), "al2023", arch)) is baked


def test_nvlsm_brings_the_distributions_libraries_without_a_version() -> None:
    amazon = step("nvidia-fabricmanager", "al2023", nvlsm="2025.10.14").env
    assert amazon["NVLSM_PACKAGES"] == "nvlsm=2025.10.14"
    assert amazon["NVLSM_OS_PACKAGES"] == "libibumad infiniband-diags"
    ubuntu = step("nvidia-fabricmanager", "ubuntu2404", nvlsm="2025.10.14").env
    assert ubuntu["NVLSM_OS_PACKAGES"] == "libibumad3 infiniband-diags"
    without = step("nvidia-fabricmanager", "al2023", nvlsm=None).env
    assert (without["NVLSM_PACKAGES"], without["NVLSM_OS_PACKAGES"]) == ("", "")


# ------------------------------------------------------------------- nvidia-imex


@pytest.mark.parametrize(
    ("distro", "source", "driver", "name"),
    [
        ("al2023", "repo", "570.211.01", "nvidia-imex-570=570.211.01"),
        ("al2023", "repo", "580.178.04", "nvidia-imex=580.178.04"),
        ("ubuntu2404", "repo", "580.178.04", "nvidia-imex=580.178.04"),
        ("ubuntu2404", "repo", "595.112.07", "nvidia-imex=595.112.07"),
        ("ubuntu2404", "distro", "595.91.07", "nvidia-imex-595=595.91.07"),
    ],
)
def test_imexs_package_is_called_as_its_archive_calls_it(
    distro: str, source: str, driver: str, name: str
) -> None:
    made = step("nvidia-imex", distro, driver_source=source, driver=driver)
    assert made.env["NVIDIA_IMEX_PACKAGES"] == name


@pytest.mark.parametrize(
    ("flavor", "owner", "parameter"),
    [
        ("base", "host", "NVreg_CreateImexChannel0=1"),
        ("eks", "dra", "NVreg_CoherentGPUMemoryMode=driver"),
    ],
)
def test_imex_and_its_driver_are_set_up_for_the_flavor(
    flavor: str, owner: str, parameter: str
) -> None:
    made = step("nvidia-imex", "al2023", flavor=flavor, driver="595.91.07")
    assert made.env["NVIDIA_IMEX_OWNER"] == owner
    (text,) = made.files.values()
    assert f"\noptions nvidia {parameter}\n" in text


# ------------------------------------------------------------------- cuda, cudnn, nccl


def test_cudas_package_carries_its_series() -> None:
    env = step("cuda", "al2", cuda="11.6.2").env
    assert env == {
        "CUDA_VERSION": "11.6.2",
        "CUDA_SERIES": "11.6",
        "CUDA_PACKAGES": "cuda-toolkit-11-6=11.6.2",
    }


@pytest.mark.parametrize(
    ("distro", "cudnn", "cuda", "names"),
    [
        (
            "al2", "8.5.0.96", "11.6.2",
            "libcudnn8=8.5.0.96@cuda11 libcudnn8-devel=8.5.0.96@cuda11",
        ),
        (
            "ubuntu2204", "8.9.7.29", "12.2.2",
            "libcudnn8=8.9.7.29@cuda12 libcudnn8-dev=8.9.7.29@cuda12",
        ),
        (
            "ubuntu2404", "9.24.1.1", "13.0.2",
            "libcudnn9-cuda-13=9.24.1.1 libcudnn9-dev-cuda-13=9.24.1.1 "
            "libcudnn9-headers-cuda-13=9.24.1.1",
        ),
        (
            "al2023", "9.24.1.1", "12.9.1",
            "libcudnn9-cuda-12=9.24.1.1 libcudnn9-devel-cuda-12=9.24.1.1 "
            "libcudnn9-headers-cuda-12=9.24.1.1",
        ),
    ],
)  # fmt: skip
def test_cudnn_is_the_one_for_the_recipes_cuda(
    distro: str, cudnn: str, cuda: str, names: str
) -> None:
    assert step("cudnn", distro, cudnn=cudnn, cuda=cuda).env["CUDNN_PACKAGES"] == names


def test_nccl_is_the_build_for_the_recipes_cuda() -> None:
    amazon = step("nccl", "al2", nccl="2.12.7", cuda="11.6.2").env["NCCL_PACKAGES"]
    assert amazon == "libnccl=2.12.7@cuda11.6 libnccl-devel=2.12.7@cuda11.6"
    debian = step("nccl", "ubuntu2404", nccl="2.28.9", cuda="13.0.2").env["NCCL_PACKAGES"]
    assert debian == "libnccl2=2.28.9@cuda13.0 libnccl-dev=2.28.9@cuda13.0"


@pytest.mark.parametrize(
    ("distro", "cuda", "version"),
    [
        ("al2", "12.4.1", "2.13.6"),
        ("ubuntu2204", "11.8.0", "2.13.6"),
        ("al2023", "12.9.1", "2.17.6"),
        ("debian12", "13.0.2", "2.17.6"),
    ],
)
def test_nccl_tests_are_the_release_that_builds_with_the_recipes_cuda(
    distro: str, cuda: str, version: str
) -> None:
    (download,) = step("nccl-tests", distro, cuda=cuda).downloads
    assert download.version == version
    assert download.url.endswith(f"/v{version}.tar.gz")


# ------------------------------------------------------------------- efa, aws-ofi-nccl, gdrcopy


def test_the_efa_installer_comes_with_its_signature_and_its_key() -> None:
    base = "https://efa-installer.amazonaws.com/aws-efa-installer"
    assert urls("efa", "al2023", efa="1.51.0") == {
        "EFA_INSTALLER": f"{base}-1.51.0.tar.gz",
        "EFA_SIGNATURE": f"{base}-1.51.0.tar.gz.sig",
        "EFA_KEY": f"{base}.key",
    }


@pytest.mark.parametrize(
    ("arch", "efa", "from_source", "skip"),
    [
        ("x86_64", "1.37.0", "1.9.2", ""),
        ("x86_64", "1.38.0", "1.9.2", "yes"),
        ("x86_64", "1.38.0", None, ""),
        # On arm64 the installer has brought it from 1.40.0 on only.
        ("arm64", "1.39.0", "1.9.2", ""),
        ("arm64", "1.40.0", "1.9.2", "yes"),
    ],
)
def test_the_installers_own_plugin_is_skipped_where_another_is_built(
    arch: str, efa: str, from_source: str | None, skip: str
) -> None:
    assert step("efa", "al2023", arch, efa=efa, ofi_nccl=from_source).env == {
        "EFA_INSTALLER_VERSION": efa,
        "EFA_SKIP_PLUGIN": skip,
    }


@pytest.mark.parametrize(
    ("version", "tag"), [("1.9.2", "1.9.2-aws"), ("1.13.2", "1.13.2-aws"), ("1.14.0", "1.14.0")]
)
def test_the_plugins_source_has_the_tag_of_its_release(version: str, tag: str) -> None:
    assert urls("aws-ofi-nccl", "al2", ofi_nccl=version) == {
        "AWS_OFI_NCCL": "https://github.com/aws/aws-ofi-nccl/releases/download/"
        f"v{tag}/aws-ofi-nccl-{tag}.tar.gz"
    }


def test_gdrcopys_source_is_that_of_its_tag() -> None:
    url = "https://github.com/NVIDIA/gdrcopy/archive/refs/tags/v2.6.tar.gz"
    assert urls("gdrcopy", "al2023", gdrcopy="2.6") == {"GDRCOPY": url}


# ------------------------------------------------------------------- tuning


@pytest.mark.parametrize("setting", ["vm.max_map_count", "fs.inotify.max_user_watches"])
def test_tuning_lowers_no_setting_that_a_distribution_or_the_kernel_has(setting: str) -> None:
    lines = step("tuning", "ubuntu2404").files["etc/sysctl.d/60-kiln.conf"].splitlines()
    values = dict(line.split(" = ") for line in lines if " = " in line and line[0] != "#")
    # 10-map-count.conf of Ubuntu 24.04's procps; the most that Linux 5.11 takes by itself.
    assert int(values[setting]) >= 1048576


# ------------------------------------------------------------------- dcgm, dcgm-exporter


@pytest.mark.parametrize(
    ("driver", "cuda"), [("520.61.05", "11"), ("575.57.08", "12"), ("580.178.04", "13")]
)
def test_dcgm_is_the_one_for_the_drivers_cuda(driver: str, cuda: str) -> None:
    named = step("dcgm", "al2023", dcgm="4.6.0", driver=driver).env["DCGM_PACKAGES"].split()
    assert f"datacenter-gpu-manager-4-cuda{cuda}=4.6.0" in named
    # Without them DCGM has no profiling metrics: apt installs nothing that is only recommended.
    assert "datacenter-gpu-manager-4-proprietary=4.6.0" in named
    assert f"datacenter-gpu-manager-4-proprietary-cuda{cuda}=4.6.0" in named


def test_dcgm_3_is_one_package() -> None:
    env = step("dcgm", "al2023", dcgm="3.3.9", driver="550.163.01").env
    assert env["DCGM_PACKAGES"] == "datacenter-gpu-manager=3.3.9"


def test_from_4_7_on_dcgms_parts_are_packages_of_their_own() -> None:
    named = {
        dcgm: step("dcgm", "ubuntu2404", dcgm=dcgm, driver="595.112.07").env["DCGM_PACKAGES"]
        for dcgm in ("4.6.1", "4.7.0")
    }
    for part in ("nv-hostengine=4.7.0", "dcgmi=4.7.0", "datacenter-gpu-manager-4-module-health"):
        assert part in named["4.7.0"]
    assert "nv-hostengine" not in named["4.6.1"]


def test_the_exporters_package_has_the_exporters_version() -> None:
    env = step("dcgm-exporter", "al2023", dcgm_exporter="4.8.3").env
    assert env["DCGM_EXPORTER_PACKAGES"] == "datacenter-gpu-manager-exporter=4.8.3"


# ------------------------------------------------------------------- container-toolkit


@pytest.mark.parametrize(("distro", "folder"), [("al2023", "rpm"), ("debian12", "deb")])
def test_the_container_toolkit_comes_whole_from_its_own_repository(
    distro: str, folder: str
) -> None:
    made = step("container-toolkit", distro, container_toolkit="1.20.0")
    base = "https://nvidia.github.io/libnvidia-container"
    assert made.env["CONTAINER_TOOLKIT_REPO_URL"] == f"{base}/stable/{folder}"
    assert made.env["CONTAINER_TOOLKIT_PACKAGES"] == (
        "libnvidia-container1=1.20.0 libnvidia-container-tools=1.20.0 "
        "nvidia-container-toolkit-base=1.20.0 nvidia-container-toolkit=1.20.0"
    )
    assert [download.url for download in made.downloads] == [f"{base}/gpgkey"]


# ------------------------------------------------------------------- MIG


@pytest.mark.parametrize(("arch", "machine"), [("x86_64", "x86_64"), ("arm64", "aarch64")])
def test_mig_parted_is_the_release_for_the_processor(arch: str, machine: str) -> None:
    (url,) = urls("mig-parted", "al2023", arch, mig_parted="0.14.3").values()
    assert url.endswith(f"/v0.14.3/nvidia-mig-manager-0.14.3-1.{machine}.tar.gz")


def test_the_label_of_the_mig_configuration_reaches_the_script() -> None:
    assert step("gpu-mig", "al2023", mig_config="all-balanced").env == {
        "MIG_CONFIG": "all-balanced"
    }
    assert step("gpu-mig", "al2023", mig_config=None).env == {"MIG_CONFIG": ""}


# ------------------------------------------------------------------- tuning


def test_every_setting_of_the_image_is_one_per_line() -> None:
    files = step("tuning", "al2023").files
    assert set(files) == {
        "etc/sysctl.d/60-kiln.conf",
        "etc/security/limits.d/60-kiln.conf",
        "etc/systemd/system.conf.d/60-kiln.conf",
    }
    assert "\nvm.max_map_count = 1048576\n" in files["etc/sysctl.d/60-kiln.conf"]
    assert "\n*    - memlock unlimited\n" in files["etc/security/limits.d/60-kiln.conf"]
    assert "\nDefaultLimitMEMLOCK=infinity\n" in files["etc/systemd/system.conf.d/60-kiln.conf"]


@pytest.mark.parametrize(("distro", "kind"), [("ubuntu2404", "soft"), ("al2", "-")])
def test_the_hard_limit_of_open_files_is_never_lowered(distro: str, kind: str) -> None:
    # systemd's own is 524288 from 240 on, and 4096 before.
    lines = step("tuning", distro).files["etc/security/limits.d/60-kiln.conf"].splitlines()
    nofile = [line.split()[:2] for line in lines if "nofile" in line]
    assert nofile == [["*", kind], ["root", kind]]


@pytest.mark.parametrize(
    ("distro", "efa", "opened"),
    [("ubuntu2404", "1.51.0", True), ("ubuntu2404", None, False), ("al2023", "1.51.0", False)],
)
def test_ranks_may_copy_from_each_other_only_where_efa_needs_it(
    distro: str, efa: str | None, opened: bool
) -> None:
    text = step("tuning", distro, efa=efa).files["etc/sysctl.d/60-kiln.conf"]
    assert ("kernel.yama.ptrace_scope = 0" in text) is opened


# ------------------------------------------------------------------- lustre-client


@pytest.mark.parametrize(
    ("distro", "topic", "suite", "keys"),
    [
        ("al2", "lustre", "", []),
        ("al2023", "", "", []),
        ("ubuntu2204", "", "jammy", ["LUSTRE_KEY"]),
        ("ubuntu2404", "", "noble", ["LUSTRE_KEY"]),
    ],
)
def test_lustre_comes_from_amazon_linux_or_from_fsxs_repository(
    distro: str, topic: str, suite: str, keys: list[str]
) -> None:
    made = step("lustre-client", distro)
    assert (made.env["LUSTRE_TOPIC"], made.env["LUSTRE_SUITE"]) == (topic, suite)
    assert bool(made.env["LUSTRE_REPO_URL"]) is bool(keys)
    assert [download.env for download in made.downloads] == keys


# ------------------------------------------------------------------- agents


@pytest.mark.parametrize(("arch", "machine"), [("x86_64", "amd64"), ("arm64", "arm64")])
def test_debian_gets_amazons_package_of_the_ssm_agent_by_its_published_hash(
    arch: str, machine: str
) -> None:
    (download,) = step("ssm-agent", "debian12", arch).downloads
    assert download.url.endswith(f"/{download.version}/debian_{machine}/amazon-ssm-agent.deb")
    assert facts.known_sha256(download.url)


@pytest.mark.parametrize("distro", ["al2023", "ubuntu2404"])
def test_elsewhere_the_ssm_agent_is_the_distributions(distro: str) -> None:
    assert step("ssm-agent", distro).downloads == ()


@pytest.mark.parametrize(
    ("distro", "arch", "version", "path"),
    [
        ("al2", "x86_64", "1.300072.0", "amazon_linux/amd64/1.300072.0b1766/{}.rpm"),
        ("ubuntu2404", "arm64", "1.300072.0", "ubuntu/arm64/1.300072.0b1766/{}.deb"),
        ("debian12", "x86_64", "1.300031.0b313", "debian/amd64/1.300031.0b313/{}.deb"),
    ],
)
def test_the_cloudwatch_agent_comes_from_the_folder_of_its_build_with_its_signature(
    distro: str, arch: str, version: str, path: str
) -> None:
    base = "https://amazoncloudwatch-agent.s3.amazonaws.com"
    url = f"{base}/{path.format('amazon-cloudwatch-agent')}"
    assert urls("cloudwatch-agent", distro, arch, cloudwatch_agent=version) == {
        "CLOUDWATCH_AGENT": url,
        "CLOUDWATCH_AGENT_SIGNATURE": f"{url}.sig",
        "CLOUDWATCH_AGENT_KEY": f"{base}/assets/amazon-cloudwatch-agent.gpg",
    }
