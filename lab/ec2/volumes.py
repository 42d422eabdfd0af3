"""Volumes besides the root: moto keeps and shows them, and no guest has their disks."""

from __future__ import annotations

from typing import Any

from lab.ec2 import imaging
from lab.ec2.calls import Request, call, error


@call("AttachVolume")
def _attach(request: Request) -> Any:
    raise error("UnsupportedOperation", "AMI Kiln lab: guests have no disk besides their root")


@call("CopySnapshot", tries=True)
def _copy(request: Request) -> Any:
    try:
        return request.of_moto().result
    except KeyError:  # moto's, of a region that it does not know
        raise imaging.no_region(request.parameters["SourceRegion"]) from None
