"""EFA: the installer, and NCCL's plugin."""

from __future__ import annotations

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.components.component import Component


def _efa_environment(recipe: Recipe) -> dict[str, str]:
    """Whether to skip the installer's aws-ofi-nccl for one from source."""
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
