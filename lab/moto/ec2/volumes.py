"""Volumes besides the root: moto keeps and shows them, and no guest has their disks."""

from __future__ import annotations

from typing import Any

from lab.moto.ec2.calls import Request, call, error


@call("AttachVolume")
def _attach(request: Request) -> Any:
    raise error("UnsupportedOperation", "AMI Kiln lab: guests have no disk besides their root")
