"""The EFA installer: EFA's driver, libfabric, Open MPI."""

from __future__ import annotations

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, download, needed


def environment(recipe: Recipe) -> dict[str, str]:
    """The installer's version, and whether to skip its aws-ofi-nccl for one from source."""
    installer = needed(recipe.efa, "efa", recipe)
    bundled = facts.bundles_plugin(installer, recipe.arch, recipe.distro.id)
    skip = recipe.ofi_nccl is not None and bundled
    return {"EFA_INSTALLER_VERSION": installer, "EFA_SKIP_PLUGIN": "yes" if skip else ""}


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """The installer, its detached signature and its signing key."""
    installer = needed(recipe.efa, "efa", recipe)
    return (
        *download(recipe, "EFA_INSTALLER", installer),
        *download(recipe, "EFA_SIGNATURE", installer),
        *download(recipe, "EFA_KEY"),
    )


COMPONENT = Component(
    name="efa",
    what="EFA installer (driver, libfabric, Open MPI), its signature checked",
    needs="efa",
    keys={"EFA_KEY_FINGERPRINT": "efa"},
    environment=environment,
    downloads=downloads,
)
