"""What a guest wrote to its console, as text and as the picture of a screen."""

from __future__ import annotations

import base64
import io
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lab.ec2.calls import Request, call, error
from lab.guests.instances import LabInstance
from lab.storage import disks

_MOST = 64 << 10
# Of a text screen, as VGA has it: characters in a line and lines, and pixels of a character.
_COLUMNS, _LINES = 80, 25
_WIDTH, _HEIGHT = 6, 11
# Colours and other control sequences (ECMA-48), which a terminal does not show.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[^\x20-\x7e\n]")


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


@call("GetConsoleScreenshot")
def _screenshot(request: Request) -> dict[str, Any]:
    """A JPEG of the last 25 lines. A guest has no screen: the lab draws what it wrote."""
    instance = _instance(request)
    if instance.state != "running":
        raise error("IncorrectInstanceState", f"The instance '{instance.id}' is not running")
    picture = screen(_written(_log(instance.id)).decode("utf-8", "replace"))
    return {"InstanceId": instance.id, "ImageData": base64.b64encode(picture).decode()}


def screen(text: str) -> bytes:
    """A text screen that shows the end of `text`, as a JPEG."""
    from PIL import Image, ImageDraw, ImageFont  # most labs draw none

    lines = [
        line[start : start + _COLUMNS]
        for line in _CONTROL.sub("", text.replace("\r\n", "\n")).split("\n")
        for start in range(0, max(1, len(line)), _COLUMNS)
    ]
    picture = Image.new("L", (_COLUMNS * _WIDTH, _LINES * _HEIGHT))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default_imagefont()
    for number, line in enumerate(lines[-_LINES:]):
        draw.text((0, number * _HEIGHT), line, fill=255, font=font)
    file = io.BytesIO()
    picture.save(file, "JPEG")
    return file.getvalue()


def _instance(request: Request) -> Any:
    return request.backend.get_instance(request.parameters["InstanceId"])


def _log(instance_id: str) -> Path:
    return disks.folder(LabInstance.machines.lab, instance_id) / "console.log"


def _written(log: Path) -> bytes:
    return log.read_bytes()[-_MOST:] if log.exists() else b""
