"""A machine that runs already, reached over SSH as the user's own ssh reaches it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kiln.cloud.machine import Machine


@dataclass(frozen=True)
class Running:
    """A machine that runs: where ssh finds it, and what EC2 says of it."""

    name: str
    user: str
    address: str
    instance_type: str = ""
    ami_id: str | None = None


@contextmanager
def connected(running: Running, run_id: str, key: str | None) -> Iterator[Machine]:
    """A machine over one shared connection, with the user's own settings of ssh below ours."""
    folder = Path(f"/tmp/kiln-{run_id}")  # noqa: S108 - private, and short enough for a socket
    folder.mkdir(mode=0o700)
    identity = f"  IdentityFile {Path(key).absolute()}\n  IdentitiesOnly yes\n" if key else ""
    config = folder / "config"
    config.write_text(
        "Host *\n"
        f"  ControlMaster auto\n  ControlPath {folder}/ssh\n  ControlPersist 60\n"
        "  BatchMode yes\n  ConnectTimeout 10\n"
        # A key that is new is kept for this run; one that differs from the user's is refused.
        "  StrictHostKeyChecking accept-new\n"
        f"  UserKnownHostsFile {folder}/known_hosts ~/.ssh/known_hosts\n"
        f"{identity}"
        "Include ~/.ssh/config\n"
    )
    machine = Machine(running.name, running.address, running.user, config, run_id, folder / "run")
    try:
        yield machine
    finally:
        machine.ssh("-O", "exit")
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
