"""Volumes besides the root: no guest has their disks."""

from __future__ import annotations

from typing import Any

from lab.moto.ec2.calls import Request, call, error

ROOT_ONLY = "AMI Kiln lab: guests have no disk besides their root"


@call("AttachVolume")
def _attach(request: Request) -> Any:
    raise error("UnsupportedOperation", ROOT_ONLY)
