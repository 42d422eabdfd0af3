"""The Xid monitor as a process on the lab's kernel log, and on this machine's where it may write.

That one is shared: every line of a test carries that test's own marker.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import guests
import pytest
from event_log import whole_lines

from kiln.base.paths import LIBRARY
from lab.machine.kmsg import KernelLog

KMSG = Path("/dev/kmsg")

pytestmark = guests.IN_CELL
PROGRAM = (
    f"import sys; sys.path.insert(0, {str(LIBRARY)!r}); "
    "from gpu_xid.__main__ import main; sys.exit(main(sys.argv[1:]))"
)


def say(kmsg: Path, text: str) -> None:
    """One line into the kernel log (a descriptor each: the kernel rate-limits per open file)."""
    fd = os.open(kmsg, os.O_WRONLY)
    try:
        os.write(fd, text.encode() + b"\n")
    finally:
        os.close(fd)


def waited(condition: Any, seconds: float) -> bool:
    """Wait for a condition; False when it did not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Monitor:
    """`gpu-xid monitor` with its own log, started as systemd does it."""

    def __init__(self, folder: Path, kmsg: Path) -> None:
        self.folder, self.kmsg = folder, kmsg
        self.marker = uuid.uuid4().hex[:12]
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "notify"))
        self.socket.settimeout(60)
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "config").write_text(json.dumps({"log": str(folder / "gpuevent.log")}))

    def start(self, wait: bool = True) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-ISB", "-c", PROGRAM, "monitor", "--config", self.folder / "config",
             "--kmsg", self.kmsg],
            env={"NOTIFY_SOCKET": str(self.folder / "notify")},
        )  # fmt: skip
        while wait and b"READY=1" not in self.socket.recv(4096):
            pass

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None

    def xid(self, n: int, code: int = 31) -> str:
        """An event line of this test; each n is another process, so that nothing is folded."""
        return f"NVRM: Xid (PCI:0000:3b:00): {code}, pid={n}, name=t, Ch {n:08x} {self.marker}"

    def rows(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in whole_lines((self.folder / "gpuevent.log").read_text())
        ]

    def mine(self) -> list[dict[str, Any]]:
        return [row for row in self.rows() if self.marker in row.get("raw", "")]

    def lost(self) -> int:
        """Records that the kernel overwrote before they were read, as the log says; those that
        were gone before the first start are none of a test's."""
        overruns = [row for row in self.rows() if row["event"] == "overrun"]
        return sum(row["lost"] for row in overruns if row["lost_from"] > 0)


@pytest.fixture(params=["the lab's", "this machine's"])
def monitor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Monitor]:
    if request.param == "the lab's":
        log = KernelLog(tmp_path / "kmsg")
        request.addfinalizer(log.close)
    else:
        try:
            os.close(os.open(KMSG, os.O_RDWR))
        except OSError as error:
            pytest.skip(f"this machine's kernel log: {error}")
    found = Monitor(tmp_path, tmp_path / "kmsg" if request.param == "the lab's" else KMSG)
    yield found
    found.end(signal.SIGKILL)


def test_kill_9_in_a_burst_loses_and_repeats_nothing(monitor: Monitor) -> None:
    """What the ring lost while a loaded machine started Python is in an `overrun` line."""
    monitor.start()
    for n in range(3000):
        say(monitor.kmsg, monitor.xid(n))
        if n % 600 == 300:
            monitor.end(signal.SIGKILL)
            monitor.start(wait=False)
        elif n % 600 == 599:  # a small ring holds some 1,300 records
            waited(lambda n=n: len(monitor.mine()) > n, 5)  # never, where some were lost
    monitor.end()
    assert set(Counter(row["pid"] for row in monitor.mine()).values()) == {1}
    assert 3000 - len(monitor.mine()) <= monitor.lost()
