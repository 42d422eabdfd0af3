"""Parses Packer's machine-readable output and its manifest."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from kiln.facts.tables import message


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
        match = message("packer", "runs_component").search(self.text)
        return match[1] if match else None

    @property
    def instance_id(self) -> str | None:
        """The build instance's id, in the line about its launch."""
        match = message("packer", "instance").search(self.text)
        return match[1] if match else None

    @property
    def patience(self) -> str:
        """How long Packer waits for the next provisioner, in its line before that: 2h5m0s."""
        match = message("packer", "limit").search(self.text)
        return match[1] if match else ""

    def says(self, name: str, kind: str = "say") -> bool:
        """Whether it is Packer's message of that name in program_messages.yaml."""
        return self.kind == kind and bool(message("packer", name).search(self.text))


@dataclass(frozen=True)
class Wait:
    """What Packer waits for from a line of its output on; `limit` in seconds, if it has one."""

    what: str
    limit: float | None = None


def waits_for(event: Event, instance: str, ssh_timeout: float) -> Wait | None:
    """What Packer waits for after this line; None if the line does not change that.

    `instance` is the id of the build instance, or words for it as long as it is not known;
    `ssh_timeout` is that of Packer, in seconds.
    """
    if event.kind not in ("say", "message"):
        return None
    if event.component:
        return Wait(f"provisioner {event.component} on {instance}")
    for name, what in _WAITS.items():
        if message("packer", name).search(event.text):
            limit = ssh_timeout if name == "waits_for_ssh" else None
            return Wait(what.format(instance=instance), limit)
    return None


# Packer's message → what it waits for from then on.
_WAITS = {
    "launches": "EC2 to launch an instance",
    "waits_for_instance": "{instance} to start",
    "waits_for_ssh": "SSH on {instance}",
    "uploads": "an upload to {instance}",
    "pauses": "{instance} to reboot",
    "runs_script": "a command on {instance}",
    "stops_instance": "{instance} to stop",
    "creates_ami": "EC2 to make the AMI",
    "waits_for_ami": "the AMI to become available",
    "terminates": "{instance} to terminate",
}


def read_manifest(path: Path) -> dict[str, str]:
    """Region → AMI id of the last build in a manifest; empty if it created no AMI."""
    try:
        artifacts = json.loads(path.read_text())["builds"][-1]["artifact_id"].split(",")
    except (OSError, ValueError, LookupError, TypeError):
        return {}
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
    text = re.sub(r"^(==> |--> |    )?[\w.-]+\.(?:amazon-ebs|null)\.gpu: ?", "", text)
    return Event(int(parts[0]), kind, text)
