"""The kernel log of a real H100 (driver 580.159.04) makes the events that were seen there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kiln.base import paths
from kiln.base.paths import ROOT
from kiln.xid import archive
from tests.unit.xid.test_monitor import Ring

checkpoint = paths.runtime_module("gpu_xid.checkpoint")
config = paths.runtime_module("gpu_xid.config")
monitor_module = paths.runtime_module("gpu_xid.monitor")

FOLDER = ROOT / "tests/data/xid/580.159.04-h100"
FORMS = ["kmsg", "dmesg", "dmesg-T", "dmesg-x", "dmesg-iso", "dmesg-J"]
# What seven programs caused, in order: a null pointer, a wild one, a misaligned address, an assert,
# a trap, shared memory that is not there, the stack overrun. Code, pid, process.
EVENTS = [
    (31, 863, "xid"), (31, 870, "xid"),
    (13, None, None), (13, None, None), (13, 877, "xid"),
    (43, 884, "xid"), (43, 891, "xid"),
    (13, None, None), (13, None, None), (13, 898, "xid"),
    (13, None, None), (13, None, None), (13, None, None), (43, 905, "xid"),
]  # fmt: skip
# What happened to a row, wherever it was read.
SAME = ("xid", "pid", "process", "pci", "uuid", "driver", "name", "severity", "action", "raw")


def replayed(name: str) -> list[dict[str, Any]]:
    with (FOLDER / name).open("rb") as file:
        return list(archive.events(file))


def monitored(folder: Path, name: str) -> list[dict[str, Any]]:
    """What the monitor writes of these records of /dev/kmsg."""
    ring = Ring()
    lines = (FOLDER / name).read_bytes().splitlines(keepends=True)
    before = int(lines[0].split(b",")[1])  # what the kernel said of other things
    ring.records = [b"6,%d,0,-;other\n" % number for number in range(before)] + lines
    log = folder / "gpuevent.log"
    conf = config.check({"log": str(log)}, "test")
    place = checkpoint.PositionFile(str(folder / "position"))
    monitor = monitor_module.Monitor(conf, ring.reader(), place)
    monitor.start()
    monitor.work()
    monitor.stop()
    return [json.loads(line) for line in log.read_text().splitlines()]


def of(rows: list[dict[str, Any]]) -> list[tuple[int, int | None, str | None]]:
    return [(row["xid"], row["pid"], row["process"]) for row in rows if row["event"] == "xid"]


def test_every_form_of_the_log_makes_the_events_that_were_caused() -> None:
    """Of what else the driver says there (FBHUB interrupt, persistence mode) none is made."""
    first, *others = (replayed(form) for form in FORMS)
    assert of(first) == EVENTS
    for rows in others:
        assert [[row[k] for k in SAME] for row in rows] == [[row[k] for k in SAME] for row in first]
    assert {row["driver"] for row in first} == {"580.159.04"}
    assert {row["uuid"] for row in first} == {"GPU-00000000-0000-0000-0000-000000000000"}
    assert {row["pci"] for row in first} == {"0000:00:06"}
    # All of them were bugs of a program: the GPU went on.
    assert {(row["xid"], row["severity"]) for row in first} == {
        (13, "error"), (31, "error"), (43, "info"),
    }  # fmt: skip


def test_the_monitor_makes_them_of_the_kernels_records(tmp_path: Path) -> None:
    rows = monitored(tmp_path, "kmsg")
    # A line that resembles one of the second before waits, in case it is a storm.
    assert of(sorted(rows, key=lambda row: row["seq"] or 0)) == EVENTS
    assert [row["event"] for row in rows if row["event"] != "xid"] == ["start", "driver", "stop"]
    assert rows[1]["driver"] == "580.159.04"
    assert not any(row.get("injected") for row in rows)


def test_a_thread_that_cuda_named_is_the_process(tmp_path: Path) -> None:
    """In a flood the driver names pid and process in front of every line about an SM."""
    rows = monitored(tmp_path, "kmsg-flood")
    assert of(sorted(rows, key=lambda row: row["seq"] or 0)) == [
        (31, 747, "flood"),
        (13, 750, "cuda00001400006"), (13, 750, "cuda00001400006"), (13, 750, "cuda00001400006"),
        (13, 748, "flood"),
        (43, 749, "flood"),
        (13, 766, "flood"), (13, 766, "flood"), (13, 766, "flood"),
    ]  # fmt: skip
