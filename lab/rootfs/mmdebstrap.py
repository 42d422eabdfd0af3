"""Calls mmdebstrap, which makes trees of Debian or Ubuntu packages."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kiln.base.errors import operation_failed
from lab.rootfs import emulation
from lab.rootfs.aptsources import Archive
from lab.vendors.packages import deb

LOCK = ".mmdebstrap.lock"
# Of every tree. Recommended packages and translations are not installed.
OPTIONS = (
    "--mode=root",
    '--aptopt=APT::Install-Recommends "false"',
    '--aptopt=Acquire::Languages "none"',
)


@contextmanager
def alone(home: Path, say: Callable[[str], None]) -> Iterator[int]:
    """Wait until no mmdebstrap makes a tree in `home`; the lock's file, for `make`.

    mmdebstrap outlives a build that is killed with SIGKILL, and goes on writing. It inherits the
    lock, which is held until it has ended.
    """
    with (home / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting up to 60 s for mmdebstrap of a killed build")
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield lock.fileno()
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)


def make(
    archive: Archive, arch: str, options: Sequence[str], tree: Path, log: Path, lock: int
) -> None:
    """Make `tree` with the given options and OPTIONS; mmdebstrap's output goes to `log`.

    `lock` is the file of `alone`.
    Raises operation_failed when mmdebstrap fails; `tree` is left as it is then.
    """
    command = [
        "mmdebstrap",
        f"--architectures={deb.architecture(emulation.machine(arch))}",
        *OPTIONS,
        *options,
        archive.suite,
        str(tree),
        *archive.lines(wide=False),
    ]
    with log.open("w") as output:
        done = subprocess.run(
            command, stdout=output, stderr=subprocess.STDOUT, pass_fds=(lock,), check=False
        )
    if done.returncode != 0:
        messages = [line for line in log.read_text().splitlines() if line.startswith(("E:", "W:"))]
        reason = " / ".join(messages[-3:]) or "no output"
        raise operation_failed(
            f"mmdebstrap could not make {tree.name.removeprefix('.making-')}: {reason}",
            hint=f"its output is in {log}",
        )
