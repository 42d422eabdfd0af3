"""All vendors; importing this module registers their routes."""

from __future__ import annotations

from lab.vendors.mirror import (
    amazon,
    cloudwatch,
    debian,
    efa,
    fsx,
    github,
    nvidia_cuda,
    nvidia_driver,
    nvidia_toolkit,
    ssm,
)
from lab.vendors.mirror.site import Site, hosts

__all__ = ["VENDORS", "Site", "hosts"]

VENDORS = (
    amazon,
    cloudwatch,
    debian,
    efa,
    fsx,
    github,
    nvidia_cuda,
    nvidia_driver,
    nvidia_toolkit,
    ssm,
)
