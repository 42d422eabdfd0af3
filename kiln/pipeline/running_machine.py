"""A machine that runs already, reached over SSH as the user's own ssh reaches it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kiln.base.paths import short_path
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
def connected(running: Running, run_id: str, folder: Path, key: str | None) -> Iterator[Machine]:
    """A machine over one shared connection, with the user's own settings of ssh below ours.

    `folder` is the run's, whose `run_id` names the connection.
    """
    with short_path(run_id, folder) as short:
        identity = f"  IdentityFile {short}/key\n  IdentitiesOnly yes\n" if key else ""
        if key:
            (short / "key").symlink_to(Path(key).absolute())
        config = short / "config"
        config.write_text(
            "Host *\n"
            f"  ControlMaster auto\n  ControlPath {short}/ssh\n  ControlPersist 60\n"
            "  BatchMode yes\n  ConnectTimeout 10\n"
            f"  UserKnownHostsFile {short}/known_hosts ~/.ssh/known_hosts\n"
            f"{identity}Include ~/.ssh/config\n"
            # Unless the user's settings say otherwise (the first value counts), a key that is new
            # is kept for this run; one that differs from the known one is refused.
            "Host *\n  StrictHostKeyChecking accept-new\n"
        )
        machine = Machine(
            running.name, running.address, running.user, config, run_id, short / "run"
        )
        try:
            yield machine
        finally:
            machine.ssh("-O", "exit")
