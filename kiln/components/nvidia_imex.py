"""IMEX, for GB200 and GB300 hosts."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Environment, packages

# Without a channel CUDA reports no permission to share memory between hosts. Source:
# https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html
_CHANNEL = "NVreg_CreateImexChannel0=1"
# On EKS NVIDIA's DRA driver makes the channels, and the driver manages the GPUs' memory (CDMM), or
# Kubernetes counts it as the node's, as in EKS's images (nvidia-kmod-load.sh). Source:
# https://docs.aws.amazon.com/eks/latest/userguide/ml-eks-nvidia-ultraserver.html
_CDMM = "NVreg_CoherentGPUMemoryMode=driver"


def files(recipe: Recipe) -> dict[str, str]:
    """The driver's parameters."""
    parameter = _CDMM if recipe.flavor == "eks" else _CHANNEL
    text = f"# AMI Kiln: parameters of the component `nvidia-imex`.\noptions nvidia {parameter}\n"
    return {"etc/modprobe.d/kiln-imex.conf": text}


def environment(recipe: Recipe) -> Environment:
    """IMEX's package, at the driver's version, and who starts it."""
    return {
        # https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/dra-intro-install.html
        "NVIDIA_IMEX_OWNER": "dra" if recipe.flavor == "eks" else "host",
        "NVIDIA_DRIVER_VERSION": recipe.driver,
        "NVIDIA_IMEX_PACKAGES": packages(recipe, "nvidia-imex", recipe.driver),
    }


COMPONENT = Component(
    name="nvidia-imex",
    what="IMEX for GB200 and GB300 hosts, at exactly the driver's version",
    needs="imex",
    environment=environment,
    files=files,
)
