"""Runs `packer build`, reads its output, and lets it clean up after itself."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.base import processes
from kiln.base.processes import Stop
from kiln.facts.tables import message
from kiln.packer.program import Packer, command


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
        return self._named("runs_component")

    @property
    def instance_id(self) -> str | None:
        """The build instance's id, in the line about its launch."""
        return self._named("instance")

    def _named(self, name: str) -> str | None:
        match = message("packer", name).search(self.text)
        return match[1] if match else None

    def says(self, name: str, kind: str = "say") -> bool:
        """Return True if it is Packer's message of that name in program_messages.yaml."""
        return self.kind == kind and bool(message("packer", name).search(self.text))


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


def waits_for(event: Event, instance: str) -> str:
    """Return what Packer waits for after this line; empty if the line does not change that.

    `instance` is the build instance's id, or words for it.
    """
    if event.kind not in ("say", "message"):
        return ""
    if event.component:
        return f"provisioner {event.component} on {instance}"
    said = (what for name, what in _WAITS.items() if message("packer", name).search(event.text))
    return next(said, "").format(instance=instance)


def parse_event(line: str) -> Event | None:
    """Return a machine-readable line, `time,target,kind,data…`; None for anything else."""
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


def read_manifest(path: Path) -> dict[str, str]:
    """Map region to AMI id for the last build in a manifest; empty if it made no AMI."""
    try:
        artifacts = json.loads(path.read_text())["builds"][-1]["artifact_id"].split(",")
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return dict(artifact.split(":", 1) for artifact in artifacts if ":" in artifact)


@dataclass(frozen=True)
class BuildResult:
    """The result of a build. `amis` maps region to AMI id; `errors` are Packer's error lines."""

    exit_status: int
    amis: dict[str, str]
    errors: tuple[str, ...]
    interrupted: bool

    @property
    def cut_short(self) -> bool:
        """True if Packer was killed: what it was asking EC2 for may appear after it."""
        return self.exit_status == -signal.SIGKILL


def run_build(
    packer: Packer,
    folder: Path,
    *,
    log: Path,
    manifest: Path,
    variables: Mapping[str, Any],
    var_files: Sequence[Path] = (),
    on_event: Callable[[Event], None] = lambda event: None,
    stop: Stop | None = None,
    environment: Mapping[str, str] | None = None,
    on_error: str = "cleanup",
) -> BuildResult:
    """Run `packer build` in `folder`; call `on_event` for each line, and write all lines to `log`.

    When `stop` is set, Packer gets one SIGTERM and `stop.grace` seconds to remove its resources, or
    less if a person asks again; the result is then `interrupted`. `environment` replaces the
    process's own; `on_error` goes to Packer.
    """
    stop = stop or Stop()
    manifest = manifest.resolve()
    manifest.unlink(missing_ok=True)
    # Relative to the folder that Packer runs in: it reads {{ in a path as a template.
    argv = command(
        packer,
        "build",
        variables={**variables, "manifest": os.path.relpath(manifest, folder.resolve())},
        var_files=[Path(os.path.relpath(path.resolve(), folder.resolve())) for path in var_files],
        flags=["-machine-readable", f"-on-error={on_error}"],
    )
    errors: list[str] = []
    log.parent.mkdir(parents=True, exist_ok=True)
    process = processes.start(argv, folder, packer.environment(environment))
    try:
        with log.open("w", encoding="utf-8", buffering=1) as kept:
            for event in _events(process, stop):
                if event.kind in {"say", "message", "error"}:
                    at = time.strftime("%H:%M:%S", time.gmtime(event.seconds))
                    kept.write(f"{at} {event.text}\n")
                if event.kind == "error":
                    errors.append(event.text)
                on_event(event)
    except _OutOfTimeError:
        _end(process, patience=1)
        exit_status = -signal.SIGKILL
    except BaseException:
        _end(process, patience=60)  # Packer may still clean up
        raise
    else:
        exit_status = process.wait()
    return BuildResult(exit_status, read_manifest(manifest), tuple(errors), stop.is_set())


class _OutOfTimeError(Exception):
    """Packer was asked to stop, and still runs after its grace."""


def _events(process: subprocess.Popen[str], stop: Stop) -> Iterator[Event]:
    """Yield Packer's lines until it closes its output; send it SIGTERM when `stop` is set."""
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(process, lines), daemon=True).start()
    signalled = None
    again = 0
    while True:
        if stop.is_set() and signalled is None:
            again = stop.again
            # Not SIGINT: the first Packer process is only a wrapper, which forwards SIGTERM and
            # ignores SIGINT.
            process.send_signal(signal.SIGTERM)
            signalled = time.monotonic()
        # The grace may become shorter meanwhile, when Packer waits for what cannot come.
        late = signalled is not None and time.monotonic() > signalled + stop.grace
        if late or (signalled is not None and stop.again > again):
            raise _OutOfTimeError
        try:
            line = lines.get(timeout=0.1)
        except queue.Empty:
            continue
        if line is None:
            return
        yield parse_event(line) or Event(int(time.time()), "message", line.rstrip("\n"))


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    for line in process.stdout or ():
        lines.put(line)
    lines.put(None)


def _end(process: subprocess.Popen[str], patience: float) -> None:
    """End Packer and its plugins: SIGTERM, and after `patience` seconds SIGKILL."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
