"""What a guest wrote to its console."""

from __future__ import annotations

import base64
from datetime import datetime, timezone
from typing import Any

from lab.ec2.calls import Request, call, missing
from lab.guests.instances import LabInstance
from lab.storage import disks

_MOST = 64 << 10


@call("GetConsoleOutput")
def _output(request: Request) -> dict[str, Any]:
    """The last 64 KiB."""
    instance_id = request.asked.get("InstanceId")
    if not instance_id:
        raise missing("InstanceId")
    instance = request.backend.get_instance(instance_id)
    log = disks.folder(LabInstance.machines.lab, instance.id) / "console.log"
    text = log.read_bytes()[-_MOST:] if log.exists() else b""
    written = datetime.fromtimestamp(log.stat().st_mtime if text else 0, timezone.utc)
    return {
        "InstanceId": instance.id,
        "Timestamp": written,
        "Output": base64.b64encode(text).decode(),
    }
