"""Parses Packer's machine-readable output and its manifest."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Event:
    """One line of Packer's machine-readable output.

    `kind` is say, message or error for text meant for people, otherwise artifact and the like.
    """

    seconds: int
    kind: str
    text: str

    @property
    def component(self) -> str | None:
        """The component whose provisioner starts with this line."""
        match = re.search(r"Provisioning with shell script: .*/([\w-]+)\.sh$", self.text)
        return match[1] if match else None

    @property
    def instance_id(self) -> str | None:
        """The build instance's id, in the line about its launch."""
        match = re.search(r"Instance ID: (i-[0-9a-f]+)", self.text)
        return match[1] if match else None


def read_manifest(path: Path) -> dict[str, str]:
    """Region → AMI id of the last build in a manifest; empty if it created no AMI."""
    try:
        builds = json.loads(path.read_text())["builds"]
    except (OSError, ValueError, KeyError):
        return {}
    artifacts = builds[-1]["artifact_id"].split(",") if builds else []
    return dict(artifact.split(":", 1) for artifact in artifacts if ":" in artifact)


def parse_event(line: str) -> Event | None:
    """One machine-readable line, `time,target,kind,data…`; None for anything else."""
    parts = line.rstrip("\n").split(",")
    if len(parts) < 3 or not parts[0].isdigit():
        return None
    kind, data = parts[2], parts[3:]
    if kind == "ui" and data:
        kind, data = data[0], data[1:]
    text = ",".join(data).replace("%!(PACKER_COMMA)", ",")
    text = text.replace("\\r", "").replace("\\n", "\n").strip("\n")
    # `==> name.amazon-ebs.gpu: text` and `    name.amazon-ebs.gpu: text`
    text = re.sub(r"^(==> |--> |    )?[\w.-]+\.amazon-ebs\.gpu: ?", "", text)
    return Event(int(parts[0]), kind, text)
