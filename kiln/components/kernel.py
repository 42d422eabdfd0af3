"""Current packages, the kernel that will boot with its headers, the compiler that built it."""

from __future__ import annotations

from kiln.base.recipe import Recipe
from kiln.components.component import Component, Environment, packages


def environment(recipe: Recipe) -> Environment:
    """The kernel to pin and the names that depend on the distribution."""
    return {
        "KERNEL_PACKAGE": recipe.kernel or "",
        # Only for a parent AMI without a kernel, as in the lab.
        "KERNEL_DEFAULT_PACKAGE": packages(recipe, "kernel"),
        "KERNEL_COMPILER_PACKAGE": packages(recipe, "kernel-compiler"),
        "KERNEL_OS_PACKAGES": packages(recipe, "kernel-tools"),
    }


COMPONENT = Component(
    name="kernel",
    what="current packages, the kernel that will boot and its headers, the compiler that built it",
    optional=False,
    reboots=True,
    environment=environment,
)
