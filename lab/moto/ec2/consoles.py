"""Guest consoles."""

from __future__ import annotations

import base64
from datetime import datetime, timezone
from typing import Any

from lab.machine import disks
from lab.moto.ec2.calls import Request, call
from lab.moto.instances import LabInstance

_MOST = 64 << 10


@call("GetConsoleOutput")
def _output(request: Request) -> dict[str, Any]:
    """The last 64 KiB."""
    instance = request.backend.get_instance(request.parameters["InstanceId"])
    log = disks.folder(LabInstance.machines.lab, instance.id) / "console.log"
    text = log.read_bytes()[-_MOST:] if log.exists() else b""
    written = datetime.fromtimestamp(log.stat().st_mtime if text else 0, timezone.utc)
    return {
        "InstanceId": instance.id,
        "Timestamp": written,
        "Output": base64.b64encode(text).decode(),
    }
