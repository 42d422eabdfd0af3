"""Runs `packer build` so that it can always clean up after itself."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.base import processes
from kiln.base.stopping import Stop
from kiln.packer.output import Event, parse_event, read_manifest
from kiln.packer.program import Packer, command, quiet


@dataclass(frozen=True)
class BuildResult:
    """The result of a build. `amis` maps region to AMI id; `errors` are Packer's error lines."""

    exit_status: int
    amis: dict[str, str]
    errors: tuple[str, ...]
    interrupted: bool

    @property
    def cut_short(self) -> bool:
        """Whether Packer was killed: what it was asking EC2 for may appear after it."""
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
    ended: list[int] = []
    log.parent.mkdir(parents=True, exist_ok=True)
    events = _events(argv, folder, environment, stop, ended)
    with log.open("w", encoding="utf-8", buffering=1) as kept, closing(events):
        for event in events:
            if event.kind in {"say", "message", "error"}:
                kept.write(
                    f"{time.strftime('%H:%M:%S', time.gmtime(event.seconds))} {event.text}\n"
                )
            if event.kind == "error":
                errors.append(event.text)
            on_event(event)
    return BuildResult(ended[0], read_manifest(manifest), tuple(errors), stop.is_set())


def _events(
    argv: list[str],
    folder: Path,
    environment: Mapping[str, str] | None,
    stop: Stop,
    ended: list[int],
) -> Generator[Event, None, None]:
    """Run Packer and yield its lines; its exit status is appended to `ended`."""
    process = processes.start(argv, folder, quiet(environment))
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    signalled = None
    again = 0
    closed = False  # its output, which ends with it
    try:
        while True:
            if stop.is_set() and signalled is None:
                again = stop.again
                # Not SIGINT: the first Packer process is only a wrapper, which forwards SIGTERM
                # and ignores SIGINT.
                process.send_signal(signal.SIGTERM)
                signalled = time.monotonic()
            # The grace may become shorter meanwhile, when Packer waits for what cannot come.
            late = signalled is not None and time.monotonic() > signalled + stop.grace
            if signalled is not None and (late or stop.again > again):
                break
            try:
                line = lines.get(timeout=0.1)
            except queue.Empty:
                continue
            if line is None:
                closed = True
                break
            yield parse_event(line) or Event(int(time.time()), "message", line.rstrip("\n"))
    finally:
        ended.append(process.wait() if closed else _end(process, signalled=signalled is not None))


def _end(process: subprocess.Popen[str], *, signalled: bool) -> int:
    """Kill Packer and its plugins when their time is up.

    Returns its exit status: that of a killed program if its time was up.
    """
    if process.poll() is None:
        # After an error in `on_event`: let Packer still clean up. At the deadline it had its time.
        process.send_signal(signal.SIGTERM)
        try:
            ended = process.wait(timeout=1 if signalled else 60)
            return -signal.SIGKILL if signalled else ended
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    for line in process.stdout:
        lines.put(line)
    lines.put(None)
