"""The Xid monitor as a process on this machine's real /dev/kmsg. Needs root, no guest.

The kernel log is shared: every line of a test carries that test's own marker.
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
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import event_log
import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "runtime" / "opt" / "kiln" / "lib"
KMSG = Path("/dev/kmsg")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(KMSG, os.R_OK | os.W_OK),
    reason="writes to the real /dev/kmsg: needs root on a Linux machine",
)


def say(text: str) -> None:
    """One line into the kernel log (a descriptor each: the kernel rate-limits per open file)."""
    fd = os.open(KMSG, os.O_WRONLY)
    try:
        os.write(fd, text.encode() + b"\n")
    finally:
        os.close(fd)


def until(condition: Any, seconds: float = 60) -> bool:
    """Wait for a condition; False when it did not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Monitor:
    """`gpu-xid monitor` with its own log, started as systemd does it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.log = folder / "gpuevent.log"
        self.config = folder / "gpu-xid.json"
        self.marker = uuid.uuid4().hex[:12]
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "notify"))
        self.socket.settimeout(60)
        self.process: subprocess.Popen[str] | None = None
        self.configure(**settings)

    def configure(self, **settings: Any) -> None:
        self.config.write_text(json.dumps({"log": str(self.log), **settings}))

    def start(self, wait: bool = True, **environ: str) -> None:
        program = (
            f"import sys; sys.path.insert(0, {str(LIBRARY)!r}); "
            "from gpu_xid.__main__ import main; sys.exit(main(sys.argv[1:]))"
        )
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-ISB",
                "-c",
                program,
                "monitor",
                "--config",
                str(self.config),
            ],
            env={"NOTIFY_SOCKET": str(self.folder / "notify"), **environ},
            stderr=(self.folder / "stderr").open("a"),
        )
        while wait and "READY=1" not in self.notified():
            pass

    def notified(self) -> str:
        return self.socket.recv(4096).decode()

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def xid(self, n: int, code: int = 31) -> str:
        """An event line of this test; each n is another process, so that nothing is folded."""
        return f"NVRM: Xid (PCI:0000:3b:00): {code}, pid={n}, name=t, Ch {n:08x} {self.marker}"

    def rows(self) -> list[dict[str, Any]]:
        return event_log.rows(self.folder)

    def mine(self) -> list[dict[str, Any]]:
        return [row for row in self.rows() if self.marker in row.get("raw", "")]

    def pids(self) -> Counter[int]:
        """How often each n of `xid` arrived."""
        return Counter(row["pid"] for row in self.mine())


@pytest.fixture
def monitor(tmp_path: Path) -> Iterator[Monitor]:
    found = Monitor(tmp_path)
    yield found
    found.end(signal.SIGKILL)


def test_an_xid_written_to_the_kernel_log_is_in_the_event_log_with_every_field(
    monitor: Monitor,
) -> None:
    monitor.start()
    raw = monitor.xid(4711, code=79)
    before = time.time()
    say(raw)
    after = time.time()
    assert until(monitor.mine)
    row = monitor.mine()[0]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    assert (row["event"], row["xid"], row["sxid"]) == ("xid", 79, None)
    assert (row["pci"], row["pid"], row["process"]) == ("0000:3b:00", 4711, "t")
    assert (row["severity"], row["name"]) == ("fatal", "GPU has fallen off the bus")
    assert (row["raw"], row["boot_id"], row["injected"]) == (raw, boot, True)
    assert row["action"]
    at = datetime.strptime(row["time"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    assert before - 1 < at.timestamp() < after + 1


def test_three_sxid_records_of_the_kernel_log_are_one_event(monitor: Monitor) -> None:
    monitor.start()
    head = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, "
    say(f"{head}Fatal, Link 48 LTSSM Fault Up {monitor.marker}")
    say(f"{head}Severity 1 Engine instance 48 Sub-engine instance 00")
    say(f"{head}Data {{0x10000000, 0x10000000}}")
    assert until(monitor.mine)
    assert [len(row["detail"]) for row in monitor.mine()] == [2]


def test_restart_with_1500_lines_written_meanwhile_loses_and_repeats_nothing(
    monitor: Monitor,
) -> None:
    monitor.start()
    for n in range(20):
        say(monitor.xid(n))
    assert until(lambda: len(monitor.mine()) == 20)
    for number, start in ((signal.SIGTERM, 20), (signal.SIGKILL, 770)):
        monitor.end(number)
        for n in range(start, start + 750):
            say(monitor.xid(n))
        monitor.start()
    assert until(lambda: len(monitor.mine()) >= 1520)
    assert monitor.pids() == Counter(range(1520))


def test_kill_9_in_the_middle_of_a_burst_loses_and_repeats_nothing(monitor: Monitor) -> None:
    """What the ring lost while a loaded machine started Python is in an `overrun` line."""
    monitor.start()
    for n in range(3000):
        say(monitor.xid(n))
        if n % 600 == 300:
            monitor.end(signal.SIGKILL)
            monitor.start(wait=False)
        elif n % 600 == 599:  # a small ring holds some 1,300 records
            until(lambda n=n: len(monitor.mine()) > n, 5)  # never, where some were lost
        elif n % 30 == 0:
            time.sleep(0.01)
    monitor.end()
    assert set(monitor.pids().values()) == {1}
    assert 3000 - len(monitor.mine()) <= lost(monitor)


def lost(monitor: Monitor) -> int:
    """Records that the kernel overwrote before they were read, as the log says; those that were
    gone before the first start are none of a test's."""
    overruns = [row for row in monitor.rows() if row["event"] == "overrun"]
    return sum(row["lost"] for row in overruns if row["lost_from"] > 0)


def test_a_burst_of_10000_lines_is_folded_and_all_of_it_is_accounted_for(monitor: Monitor) -> None:
    """What the ring lost while a loaded machine ran others is in an `overrun` line."""
    monitor.start()
    for n in range(10000):
        say(monitor.xid(7, code=32).replace("Ch 00000007", f"Ch {n:08x}"))
    monitor.end()
    arrived = sum(row.get("count", 1) for row in monitor.mine())
    assert arrived <= 10000 <= arrived + lost(monitor)
    assert len(monitor.mine()) < 100, "a storm is folded"


def test_rotation_by_the_monitor_and_by_others_loses_nothing(monitor: Monitor) -> None:
    monitor.configure(max_bytes=20000, keep=100)
    monitor.start()
    for n in range(600):
        say(monitor.xid(n))
        if n % 100 == 50:
            assert until(lambda n=n: monitor.pids()[n] == 1)
            monitor.log.rename(monitor.log.with_name(f"gpuevent.log-{n}"))
    assert until(lambda: len(monitor.mine()) == 600)
    monitor.end(signal.SIGKILL)
    monitor.log.rename(monitor.log.with_name("gpuevent.log-last"))
    monitor.start()
    monitor.end()
    assert monitor.pids() == Counter(range(600))
    assert len(list(monitor.folder.glob("gpuevent.log.*"))) > 5


def test_a_log_behind_a_link_rotates_where_it_is_and_the_link_stays(
    monitor: Monitor, tmp_path: Path
) -> None:
    disk = tmp_path / "another disk"
    disk.mkdir()
    monitor.log.symlink_to(disk / "gpuevent.log")
    monitor.configure(max_bytes=4096, keep=100)
    monitor.start()
    for n in range(20):
        say(monitor.xid(n))
        time.sleep(0.01)
    assert until((disk / "gpuevent.log.1").exists)
    monitor.end()
    assert monitor.log.is_symlink()
    texts = [path.read_text() for path in disk.iterdir()]
    assert sum(text.count(monitor.marker) for text in texts) == 20


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    monitor = Monitor(disk)
    try:
        monitor.start()
        free = os.statvfs(disk)
        (disk / "filler").write_bytes(b"x" * (free.f_bavail * free.f_frsize - 20000))
        for n in range(300):
            say(monitor.xid(n))
        assert until(lambda: "cannot write" in monitor.stderr())
        full = len(monitor.mine())
        assert full < 300
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        assert until(lambda: len(monitor.mine()) == 300)
        assert monitor.pids() == Counter(range(300))
        assert "is writable again" in monitor.stderr()
    finally:
        monitor.end(signal.SIGKILL)
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_no_wake_up_while_the_kernel_says_nothing(monitor: Monitor) -> None:
    monitor.start()
    assert monitor.process is not None
    status = Path(f"/proc/{monitor.process.pid}/status")

    def switches() -> int:
        lines = [line for line in status.read_text().splitlines() if "ctxt_switches" in line]
        return sum(int(line.split()[1]) for line in lines)

    woken = 0
    for _ in range(20):
        with kernel_log_from_now() as log:
            before = switches()
            time.sleep(3)
            slept = switches() == before
            if others_wrote(log):  # which does wake it
                continue
        if slept:
            return
        woken += 1
        assert woken < 3, "woken in each of three quiet stretches of three seconds"
    pytest.skip("the kernel was not quiet for three seconds in a minute")


@contextmanager
def kernel_log_from_now() -> Iterator[int]:
    log = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.lseek(log, 0, os.SEEK_END)
        yield log
    finally:
        os.close(log)


def others_wrote(log: int) -> bool:
    try:
        return bool(os.read(log, 8192))
    except BrokenPipeError:  # so much that it is overwritten already
        return True
    except BlockingIOError:
        return False


def test_a_second_monitor_on_the_same_log_is_refused(monitor: Monitor) -> None:
    monitor.start()
    other = Monitor.__new__(Monitor)
    other.__dict__.update(monitor.__dict__)
    other.start(wait=False)
    assert other.process is not None
    assert other.process.wait(60) == 1
    assert "another gpu-xid monitor" in monitor.stderr()
