"""The GPU stack: NVIDIA's driver and what belongs to it, CUDA and its libraries, EFA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kiln import facts
from kiln.base import versions
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, download, packages, repository

# What is installed from NVIDIA's repository; the driver too, for `driver_source: repo`.
_SERVED = ("cuda", "cudnn", "nccl", "nvlsm", "dcgm", "dcgm_exporter", "imex")


def _repo_gives_something(stack: Mapping[str, Any]) -> bool:
    """Return True if a GPU stack has anything from NVIDIA's repository. Debian's own driver alone
    has not: an image of it must not get NVIDIA's driver by a later `apt install`."""
    return (stack.get("driver_source") or "repo") == "repo" or any(map(stack.get, _SERVED))


def _repo_environment(recipe: Recipe) -> dict[str, str]:
    """The distribution's name and repository; where that one lacks cuDNN and NCCL, a second one for
    these alone."""
    libraries = "CUDA_LIBRARIES_REPO_URL"
    return {
        "CUDA_REPO": recipe.distro.cuda_repo,
        "CUDA_REPO_URL": repository(recipe, "CUDA_REPO_URL"),
        libraries: repository(recipe, libraries) if recipe.cudnn or recipe.nccl else "",
    }


NVIDIA_REPO = Component(
    name="nvidia-repo",
    what="NVIDIA's package repository, its key checked by fingerprint",
    needs="driver",
    wanted=_repo_gives_something,
    urls=("CUDA_REPO_KEY",),
    keys={
        "CUDA_RPM_KEY_FINGERPRINT": "nvidia-cuda-rpm",
        "CUDA_DEB_KEY_FINGERPRINT": "nvidia-cuda-deb",
    },
    environment=_repo_environment,
)


def _driver_environment(recipe: Recipe) -> dict[str, str]:
    """The driver's packages and DNF module stream.

    For `kernel_module: both` also those of the proprietary module alone: the script builds it
    first, keeps the result, and removes the packages again.
    """
    from_packages, both = recipe.driver_source != "runfile", recipe.kernel_module == "both"
    module = "proprietary" if recipe.kernel_module == "proprietary" else "open"
    driver, other = "", ""
    if from_packages:
        driver = packages(recipe, "nvidia-driver", recipe.driver, module=module)
    if from_packages and both:
        entry = "nvidia-kernel-module"
        other = packages(recipe, entry, recipe.driver, module="proprietary")
    return {
        "NVIDIA_DRIVER_SOURCE": recipe.driver_source,
        "NVIDIA_KERNEL_MODULE": recipe.kernel_module,
        "NVIDIA_DRIVER_STREAM": _stream(recipe, module),
        "NVIDIA_DRIVER_PACKAGES": driver,
        "NVIDIA_OTHER_STREAM": _stream(recipe, "proprietary") if both else "",
        "NVIDIA_OTHER_PACKAGES": other,
    }


def _stream(recipe: Recipe, module: str) -> str:
    stream: str = facts.table("packages")["streams"]["nvidia-driver"][module]
    return stream.format(branch=versions.major(recipe.driver))


def _runfile(recipe: Recipe) -> Iterable[Download]:
    from_runfile = recipe.driver_source == "runfile"
    return download(recipe, "NVIDIA_DRIVER", recipe.driver) if from_runfile else ()


NVIDIA_DRIVER = Component(
    name="nvidia-driver",
    what="NVIDIA driver, its kernel module built by DKMS for the kernel that boots, persistenced",
    version_field="driver",
    optional=False,
    version="NVIDIA_DRIVER_VERSION",
    environment=_driver_environment,
    downloads=_runfile,
)


def _has_nvswitch(arch: str) -> bool:
    """Return True if any instance type with the processor has an NVSwitch of its own. GB200's and
    GB300's are managed on the switch trays (instances.yaml), so no arm64 instance runs fabric
    manager."""
    return any(machine.nvswitch for machine in facts.instances().values() if machine.arch == arch)


def _fabric_manager(recipe: Recipe) -> str:
    """The packages of fabric manager; empty if the archive of the driver's packages has none."""
    if recipe.driver_source == "runfile":
        return ""
    try:
        return packages(recipe, "nvidia-fabricmanager", recipe.driver)
    except KilnError:
        return ""


def _fabric_environment(recipe: Recipe) -> dict[str, str]:
    nvlsm = recipe.nvlsm
    return {
        "NVIDIA_FABRICMANAGER_PACKAGES": _fabric_manager(recipe),
        "NVLSM_PACKAGES": packages(recipe, "nvlsm", nvlsm) if nvlsm else "",
        "NVLSM_OS_PACKAGES": packages(recipe, "nvlsm-libraries") if nvlsm else "",
        "NVLSM_PROGRAM": facts.table("drivers")["nvlsm"]["program"] if nvlsm else "",
    }


def _fabric_archive(recipe: Recipe) -> Iterable[Download]:
    """NVIDIA's redistributable archive, if there is no package for the driver."""
    packaged = _fabric_manager(recipe)
    return () if packaged else download(recipe, "NVIDIA_FABRICMANAGER", recipe.driver)


NVIDIA_FABRICMANAGER = Component(
    name="nvidia-fabricmanager",
    what="fabric manager at exactly the driver's version, started only where NVSwitch is present",
    needs="driver",
    serves=_has_nvswitch,
    version="NVIDIA_DRIVER_VERSION",
    environment=_fabric_environment,
    downloads=_fabric_archive,
)

# Without a channel CUDA reports no permission to share memory between hosts. Source:
# https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html
_CHANNEL = "NVreg_CreateImexChannel0=1"
# On EKS NVIDIA's DRA driver makes the channels, and the driver manages the GPUs' memory (CDMM), or
# Kubernetes counts it as the node's, as in EKS's images (nvidia-kmod-load.sh). Source:
# https://docs.aws.amazon.com/eks/latest/userguide/ml-eks-nvidia-ultraserver.html
_CDMM = "NVreg_CoherentGPUMemoryMode=driver"


def _imex_environment(recipe: Recipe) -> dict[str, str]:
    """Return IMEX's starter, and its package at the driver's version."""
    return {
        # https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/dra-intro-install.html
        "NVIDIA_IMEX_OWNER": "dra" if recipe.flavor == "eks" else "host",
        "NVIDIA_DRIVER_VERSION": recipe.driver,
        "NVIDIA_IMEX_PACKAGES": packages(recipe, "nvidia-imex", recipe.driver),
    }


def _imex_files(recipe: Recipe) -> dict[str, str]:
    parameter = _CDMM if recipe.flavor == "eks" else _CHANNEL
    text = f"# AMI Kiln: parameters of the component `nvidia-imex`.\noptions nvidia {parameter}\n"
    return {"etc/modprobe.d/kiln-imex.conf": text}


NVIDIA_IMEX = Component(
    name="nvidia-imex",
    what="IMEX for GB200 and GB300 hosts, at exactly the driver's version",
    needs="imex",
    environment=_imex_environment,
    files=_imex_files,
)

GPU_MIG = Component(
    name="gpu-mig",
    what="MIG configuration applied at every boot",
    environment=lambda recipe: {"MIG_CONFIG": recipe.mig_config or ""},
)

BOOST_CLOCKS = Component(
    name="boost-clocks",
    what="the GPUs' highest application clocks, set at every boot where the driver allows it",
)


CUDA = Component(
    name="cuda",
    what="CUDA toolkit",
    needs="cuda",
    version="CUDA_VERSION",
    packages={"CUDA_PACKAGES": "cuda"},
    environment=lambda recipe: {"CUDA_SERIES": versions.series(recipe.cuda or "")},
)

CUDNN = Component(
    name="cudnn",
    what="cuDNN for that CUDA",
    needs="cudnn",
    built_for="cuda",
    version="CUDNN_VERSION",
    packages={"CUDNN_PACKAGES": "cudnn"},
)

NCCL = Component(
    name="nccl",
    what="NCCL packages for that CUDA",
    needs="nccl",
    built_for="cuda",
    version="NCCL_VERSION",
    packages={"NCCL_PACKAGES": "nccl"},
)

NCCL_TESTS = Component(
    name="nccl-tests",
    what="NVIDIA's nccl-tests in /opt/nccl-tests, built with the image's CUDA, NCCL and Open MPI",
    needs="nccl",
    built_for="cuda",
    packages={"NCCL_TESTS_OS_PACKAGES": "nccl-tests"},
    # The newest release that builds with the recipe's CUDA.
    downloads=lambda recipe: download(recipe, "NCCL_TESTS", recipe.cuda or ""),
)

GDRCOPY = Component(
    name="gdrcopy",
    what="GDRCopy library and kernel module",
    needs="gdrcopy",
    version="GDRCOPY_VERSION",
    urls=("GDRCOPY",),
)


def _efa_environment(recipe: Recipe) -> dict[str, str]:
    """Return the choice to skip the installer's aws-ofi-nccl for one from source."""
    bundled = facts.bundles_plugin(recipe.efa or "", recipe.arch, recipe.distro.id)
    return {"EFA_SKIP_PLUGIN": "yes" if recipe.ofi_nccl and bundled else ""}


EFA = Component(
    name="efa",
    what="EFA installer (driver, libfabric, Open MPI), its signature checked",
    needs="efa",
    version="EFA_INSTALLER_VERSION",
    urls=("EFA_INSTALLER", "EFA_SIGNATURE", "EFA_KEY"),
    keys={"EFA_KEY_FINGERPRINT": "efa"},
    environment=_efa_environment,
)

AWS_OFI_NCCL = Component(
    name="aws-ofi-nccl",
    what="NCCL's EFA plugin from source, for installers that do not bundle it",
    needs="ofi_nccl",
    version="AWS_OFI_NCCL_VERSION",
    packages={"AWS_OFI_NCCL_OS_PACKAGES": "aws-ofi-nccl"},
    urls=("AWS_OFI_NCCL",),
)
