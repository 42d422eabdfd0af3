"""Fabric manager at exactly the driver's version, and NVLSM where the recipe names it."""

from __future__ import annotations

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, Environment, download, packaged, packages


def environment(recipe: Recipe) -> Environment:
    """The packages of fabric manager and of NVLSM, which has its own versions."""
    return {
        "NVIDIA_DRIVER_VERSION": recipe.driver,
        "NVIDIA_FABRICMANAGER_PACKAGES": (
            packages(recipe, "nvidia-fabricmanager", recipe.driver) if _from_package(recipe) else ""
        ),
        "NVLSM_PACKAGES": packages(recipe, "nvlsm", recipe.nvlsm) if recipe.nvlsm else "",
        "NVLSM_OS_PACKAGES": packages(recipe, "nvlsm-libraries") if recipe.nvlsm else "",
        "NVLSM_PROGRAM": facts.nvlsm_program() if recipe.nvlsm else "",
    }


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """NVIDIA's redistributable archive, if there is no package for the driver."""
    if _from_package(recipe):
        return ()
    return download(recipe, "NVIDIA_FABRICMANAGER", recipe.driver)


def _from_package(recipe: Recipe) -> bool:
    """Does the archive of the driver's packages have fabric manager too?"""
    return recipe.driver_source != "runfile" and packaged(
        recipe, "nvidia-fabricmanager", recipe.driver
    )


def has_nvswitch(arch: str) -> bool:
    """Has any instance type with the processor an NVSwitch of its own? GB200's and GB300's are
    managed on the switch trays (instances.yaml), so no arm64 instance runs fabric manager."""
    return any(machine.nvswitch for machine in facts.instances().values() if machine.arch == arch)


COMPONENT = Component(
    name="nvidia-fabricmanager",
    what="fabric manager at exactly the driver's version, started only where NVSwitch is present",
    needs="driver",
    serves=has_nvswitch,
    environment=environment,
    downloads=downloads,
)
