"""The monitor and a real journal: systemd-journald and journalctl on a booted guest.

Guests share the host's kernel, so the guest's journald (which the lab's base keeps off the kernel
log) is let onto it, and the monitor's unit is kept off it: then it has to follow the journal.
"""

from __future__ import annotations

import json
import re
import struct
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import event_log
import pytest
import xid_guest
from xid_guest import LOG, UNIT, Guest

from kiln.base import runtime_import

pytestmark = xid_guest.NEEDS

KMSG = "/etc/systemd/journald.conf.d/zz-test.conf"  # behind the base's own
CONF = "/etc/kiln/gpu-xid.json"
CORPUS = Path(__file__).parents[1] / "data" / "xid" / "lines.jsonl"


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Guest]:
    with xid_guest.booted(tmp_path) as result:
        result.run("systemctl", "stop", UNIT)
        journal_reads_the_kernel(result, "yes")
        result.run("systemctl", "restart", "systemd-journald")
        result.write(
            f"/etc/systemd/system/{UNIT}.d/journal.conf", "[Service]\nInaccessiblePaths=/dev/kmsg\n"
        )
        result.run("systemctl", "daemon-reload")
        for old in (LOG, "/var/lib/gpu-xid/position"):
            (result.root / old.lstrip("/")).unlink()
        yield result


def journal_reads_the_kernel(guest: Guest, answer: str) -> None:
    guest.write(KMSG, f"[Journal]\nReadKMsg={answer}\nStorage=persistent\n")


def rows(guest: Guest) -> list[dict[str, Any]]:
    """This test's events in the log and its rotated files."""
    result = event_log.rows(guest.root / "var/log")
    return [row for row in result if guest.marker in row.get("raw", "")]


def pids(guest: Guest) -> Counter[int]:
    return Counter(row["pid"] for row in rows(guest))


def test_the_journal_is_followed_and_kill_stop_and_start_lose_and_repeat_nothing(
    guest: Guest,
) -> None:
    guest.run("systemctl", "start", UNIT)
    # "Started" comes before the monitor has read the clock: what is written between is a catch-up.
    guest.xid(1, 1)
    assert guest.until(lambda: len(rows(guest)) == 1)
    guest.xid(2, 30)
    assert guest.until(lambda: len(rows(guest)) == 30)
    guest.run("kill", "-9", guest.show("MainPID"))
    guest.xid(31, 60)
    assert guest.until(lambda: len(rows(guest)) == 60)
    guest.run("systemctl", "stop", UNIT)
    assert guest.show("Result") == "success", "systemd ends journalctl with it: that is no failure"
    guest.xid(61, 90)
    guest.run("systemctl", "start", UNIT)
    assert guest.until(lambda: len(rows(guest)) >= 90)
    time.sleep(1)
    assert pids(guest) == Counter(range(1, 91))
    row = rows(guest)[-1]
    assert (row["xid"], row["pci"], row["process"]) == (31, "0000:00:1e", "t")
    assert (row["seq"], row["injected"], row["catchup"]) == (None, True, True)
    assert "catchup" not in rows(guest)[1]


def test_a_rotated_log_and_a_log_taken_away_keep_the_place_in_the_journal(guest: Guest) -> None:
    guest.write(CONF, json.dumps({"max_bytes": 4096, "keep": 99}))
    guest.run("systemctl", "start", UNIT)
    guest.xid(1, 40)
    assert guest.until(lambda: len(rows(guest)) == 40)
    guest.run("systemctl", "restart", UNIT)
    guest.run("systemctl", "stop", UNIT)
    guest.run("mv", LOG, f"{LOG}-20261121")
    guest.xid(41, 60)
    guest.run("systemctl", "start", UNIT)
    assert guest.until(lambda: len(rows(guest)) >= 60)
    time.sleep(1)
    assert pids(guest) == Counter(range(1, 61))


def test_raw_lines_say_nothing_of_the_journal_and_still_are_not_repeated(guest: Guest) -> None:
    guest.write(CONF, json.dumps({"format": "raw"}))
    guest.run("systemctl", "start", UNIT)
    guest.xid(1, 10)
    assert guest.until(lambda: guest.read(LOG).count(guest.marker) == 10)
    guest.run("systemctl", "restart", UNIT)
    guest.xid(11, 20)
    assert guest.until(lambda: guest.read(LOG).count(guest.marker) >= 20)
    time.sleep(1)
    assert guest.read(LOG).count(guest.marker) == 20


def test_what_the_last_boot_left_unread_is_picked_up_once_after_a_reboot(guest: Guest) -> None:
    guest.write(CONF, json.dumps({"previous_boot_lines": 5000}))
    guest.run("systemctl", "start", UNIT)
    guest.xid(1, 10)
    assert guest.until(lambda: len(rows(guest)) == 10)
    guest.run("systemctl", "stop", UNIT)
    before, boot = time.time(), guest.run("cat", "/proc/sys/kernel/random/boot_id").strip()
    guest.xid(11, 30)
    after = time.time()
    # The next boot's journal must not read the same kernel's log again: a real one is new.
    journal_reads_the_kernel(guest, "no")
    guest.reboot()
    assert guest.until(lambda: len(rows(guest)) >= 30)
    guest.run("systemctl", "restart", UNIT)
    guest.reboot()
    time.sleep(1)
    assert pids(guest) == Counter(range(1, 31))
    for row in rows(guest)[10:]:
        assert row["previous_boot"]
        assert row["boot_id"] == boot.replace("-", "")
        at = datetime.strptime(row["time"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        assert before - 1 < at.timestamp() < after + 1


def test_every_event_of_the_corpus_is_found_in_a_journal_of_the_last_boot(
    guest: Guest, tmp_path: Path
) -> None:
    """The kernel's own lines (facility 0), as systemd-journal-remote stores them in its files."""
    package = xid_guest.from_debian("systemd-journal-remote", tmp_path / "remote")
    library = xid_guest.from_debian("libmicrohttpd12", tmp_path / "library")
    program = package / "lib/systemd/systemd-journal-remote"
    (guest.root / "opt/remote").write_bytes(program.read_bytes())
    (guest.root / "opt/remote").chmod(0o755)
    (shared,) = (library / "usr/lib").glob("*/libmicrohttpd.so.12.*")
    (guest.root / "opt/libmicrohttpd.so.12").write_bytes(shared.read_bytes())
    messages = corpus_messages()
    (guest.root / "opt/export").write_bytes(export([*messages, b"NVRM: Xid \xff"]))
    machine = guest.read("/etc/machine-id").strip()
    guest.run(
        "env", "LD_LIBRARY_PATH=/opt", "/opt/remote",
        f"--output=/var/log/journal/{machine}/last.journal", "/opt/export",
    )  # fmt: skip
    guest.write(CONF, json.dumps({"previous_boot_lines": 5000}))
    guest.run("systemctl", "start", UNIT)
    # systemd says that it is started when all of the last boot is in the log.
    result = event_log.rows(guest.root / "var/log")
    result = [row for row in result if row.get("previous_boot") and row["event"] != "gpu-lost"]
    wanted = [row for text in messages for row in events_of(text.decode())]
    assert len(wanted) > 300
    assert [(row["xid"], row["sxid"], row["pci"], row["pid"]) for row in result] == wanted
    assert not any(row.get("injected") for row in result)


def corpus_messages() -> list[bytes]:
    """The kernel's message in each line of the corpus: events and similar messages."""
    lines = [json.loads(line)["line"] for line in CORPUS.read_text().splitlines()]
    return [
        re.sub("^.*?(?=NVRM: |nvidia-nvswitch)", "", line).encode()
        for line in lines
        if "\n" not in line
    ]


def events_of(text: str) -> list[tuple[Any, ...]]:
    """(xid, sxid, pci, pid) of each event in a message."""
    result = runtime_import.runtime_module("gpu_xid.pipeline").messages(text)
    events = [row for row in result if row["kind"] in ("xid", "sxid")]
    return [(row.get("xid"), row.get("sxid"), row["pci"], row["pid"]) for row in events]


def export(messages: list[bytes]) -> bytes:
    """Kernel messages of an earlier boot in the journal's export format."""
    start = int((time.time() - 3600) * 1000000)
    entries = []
    for number, message in enumerate(messages):
        usec = 1000000 + number
        fields = [
            f"__REALTIME_TIMESTAMP={start + usec}", f"__MONOTONIC_TIMESTAMP={usec}",
            f"_SOURCE_MONOTONIC_TIMESTAMP={usec}", f"_BOOT_ID={'ab' * 16}",
            f"_MACHINE_ID={'cd' * 16}", "_TRANSPORT=kernel", "PRIORITY=4", "SYSLOG_FACILITY=0",
            "SYSLOG_IDENTIFIER=kernel", "_HOSTNAME=lab",
        ]  # fmt: skip
        # The binary form of a field, which takes any bytes: name, length, data.
        binary = b"MESSAGE\n" + struct.pack("<Q", len(message)) + message + b"\n"
        entries.append("\n".join(fields).encode() + b"\n" + binary + b"\n")
    return b"".join(entries)
