"""NVIDIA's driver, its kernel module built by DKMS for the kernel that boots, persistenced."""

from __future__ import annotations

from kiln import facts
from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, Environment, download, packages


def environment(recipe: Recipe) -> Environment:
    """The driver's packages and DNF module stream.

    For `kernel_module: both` also those of the proprietary module alone: the script builds it
    first, keeps the result, and removes the packages again.
    """
    module = "proprietary" if recipe.kernel_module == "proprietary" else "open"
    from_packages = recipe.driver_source != "runfile"
    both = recipe.kernel_module == "both"
    return {
        "NVIDIA_DRIVER_VERSION": recipe.driver,
        "NVIDIA_DRIVER_SOURCE": recipe.driver_source,
        "NVIDIA_KERNEL_MODULE": recipe.kernel_module,
        "NVIDIA_DRIVER_STREAM": _stream(recipe, module),
        "NVIDIA_DRIVER_PACKAGES": (
            packages(recipe, "nvidia-driver", recipe.driver, module=module) if from_packages else ""
        ),
        "NVIDIA_OTHER_STREAM": _stream(recipe, "proprietary") if both else "",
        "NVIDIA_OTHER_PACKAGES": (
            packages(recipe, "nvidia-kernel-module", recipe.driver, module="proprietary")
            if both and from_packages
            else ""
        ),
    }


def downloads(recipe: Recipe) -> tuple[Download, ...]:
    """NVIDIA's runfile, for `driver_source: runfile`."""
    if recipe.driver_source != "runfile":
        return ()
    return download(recipe, "NVIDIA_DRIVER", recipe.driver)


def _stream(recipe: Recipe, module: str) -> str:
    """The DNF module stream with a kernel module."""
    stream: str = facts.table("packages")["streams"]["nvidia-driver"][module]
    return stream.format(branch=recipe.driver_branch)


COMPONENT = Component(
    name="nvidia-driver",
    what="NVIDIA driver, its kernel module built by DKMS for the kernel that boots, persistenced",
    version_field="driver",
    optional=False,
    environment=environment,
    downloads=downloads,
)
