"""Guest consoles."""

from __future__ import annotations

import base64
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lab.machine import disks
from lab.moto.ec2.calls import Request, call
from lab.moto.instances import LabInstance

_MOST = 64 << 10


@call("GetConsoleOutput")
def _output(request: Request) -> dict[str, Any]:
    """The last 64 KiB."""
    instance = _instance(request)
    log = _log(instance.id)
    text = _written(log)
    written = datetime.fromtimestamp(log.stat().st_mtime if text else 0, timezone.utc)
    return {
        "InstanceId": instance.id,
        "Timestamp": written,
        "Output": base64.b64encode(text).decode(),
    }


def _instance(request: Request) -> Any:
    return request.backend.get_instance(request.parameters["InstanceId"])


def _log(instance_id: str) -> Path:
    return disks.folder(LabInstance.machines.lab, instance_id) / "console.log"


def _written(log: Path) -> bytes:
    return log.read_bytes()[-_MOST:] if log.exists() else b""
