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

    @property
    def patience(self) -> str:
        """How long Packer waits for the next provisioner, in its line before that: 2h5m0s."""
        match = re.match(r"Setting a (\S+) timeout for the next provisioner", self.text)
        return match[1] if match else ""


# `ssh_timeout` of templates/packer/source.pkr.hcl.j2, in seconds.
SSH_TIMEOUT = 600.0


@dataclass(frozen=True)
class Wait:
    """What Packer waits for from a line of its output on; `limit` in seconds, if it has one."""

    what: str
    limit: float | None = None


def waits_for(event: Event, instance: str) -> Wait | None:
    """What Packer waits for after this line; None if the line does not change that.

    `instance` is the id of the build instance, or words for it as long as it is not known.
    """
    if event.kind not in ("say", "message"):
        return None
    if event.component:
        return Wait(f"provisioner {event.component} on {instance}")
    for beginning, what, limit in _WAITS:
        if event.text.startswith(beginning):
            return Wait(what.format(instance=instance), limit)
    return None


# The beginning of Packer's line → what it waits for from then on.
_WAITS: tuple[tuple[str, str, float | None], ...] = (
    ("Launching a source AWS instance", "EC2 to launch an instance", None),
    ("Waiting for instance", "{instance} to start", None),
    ("Waiting for SSH to become available", "SSH on {instance}", SSH_TIMEOUT),
    ("Uploading ", "an upload to {instance}", None),
    ("Pausing ", "{instance} to reboot", None),
    ("Provisioning with shell script", "a command on {instance}", None),
    ("Stopping the source instance", "{instance} to stop", None),
    ("Creating AMI", "EC2 to make the AMI", None),
    ("Waiting for AMI to become ready", "the AMI to become available", None),
    ("Terminating the source AWS instance", "{instance} to terminate", None),
)


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
    text = re.sub(r"^(==> |--> |    )?[\w.-]+\.(?:amazon-ebs|null)\.gpu: ?", "", text)
    return Event(int(parts[0]), kind, text)
