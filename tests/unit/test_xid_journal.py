"""The journal as a source: rows as `journalctl -o json` prints them, from a made-up journalctl."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kiln.base import runtime_import

checkpoint = runtime_import.runtime_module("gpu_xid.checkpoint")
config = runtime_import.runtime_module("gpu_xid.config")
journal = runtime_import.runtime_module("gpu_xid.journal")
monitor = runtime_import.runtime_module("gpu_xid.monitor")

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."


def row(number: int, text: str = XID, **more: Any) -> str:
    fields = {
        "__CURSOR": f"s=1;i={number}",
        "__REALTIME_TIMESTAMP": str(1790000000000000 + number),
        "_SOURCE_MONOTONIC_TIMESTAMP": str(1000 + number),
        "_BOOT_ID": "0" * 32,
        "SYSLOG_FACILITY": "0",
        "SYSLOG_IDENTIFIER": "kernel",
        "MESSAGE": text,
    }
    return json.dumps({**fields, **more})


class Silent(journal.JournalReader):  # type: ignore[misc,name-defined]
    """A kernel that has said nothing in this boot."""

    def follow(self, cursor: str | None) -> None:
        pass

    def drain(self, limit: int = 0, backlog: int = 0) -> Iterator[bytes]:
        self.drained = True
        return iter(())


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journalctl that prints `rows` behind the cursor, notes its arguments and stays (-f)."""
    script = tmp_path / "journalctl"
    (tmp_path / "rows").touch()
    script.write_text(
        f"""#!/bin/sh
echo "$*" >> {tmp_path}/arguments
case "$*" in
  *--after-cursor=*) cursor=${{*##*--after-cursor=}}; sed "1,/\\"$cursor\\"/d" {tmp_path}/rows ;;
  *) cat {tmp_path}/rows ;;
esac
touch {tmp_path}/told
case "$*" in *--follow*) exec sleep 30 ;; esac
"""
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def events(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """One run of the monitor on the journal; what the log holds afterwards."""
    conf = config.check({"log": str(folder / "log"), **settings}, "test")
    reader = journal.JournalReader()
    result = monitor.Monitor(
        conf, reader, checkpoint.PositionFile(str(folder / "position")), environ={}
    )
    message = folder / "told"
    message.unlink(missing_ok=True)
    result.start()
    deadline = time.monotonic() + 60
    while reader.pid and not message.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    result.work()
    result.stop()
    lines = (folder / "log").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "raw" in line]


def test_where_kmsg_cannot_be_read_the_journal_is_followed_and_resumed_by_cursor(
    journalctl: Path,
) -> None:
    rows = journalctl / "rows"
    rows.write_text(row(1) + "\n" + row(2, "usb: no") + "\n" + row(3) + "\n")
    assert [line["monotonic_us"] for line in events(journalctl)] == [1001, 1003]
    rows.write_text(rows.read_text() + row(4) + "\n")
    assert [line["monotonic_us"] for line in events(journalctl)] == [1001, 1003, 1004]
    assert "--after-cursor=s=1;i=3" in (journalctl / "arguments").read_text()


def test_a_line_from_user_space_gets_its_first_word_back_and_is_marked(journalctl: Path) -> None:
    text = XID.removeprefix("NVRM: ")
    (journalctl / "rows").write_text(row(1, text, SYSLOG_FACILITY="1", SYSLOG_IDENTIFIER="NVRM"))
    with (journalctl / "rows").open("a") as file:
        file.write("\n")
    result = events(journalctl)
    assert [(line["xid"], line["injected"], line["raw"]) for line in result] == [(79, True, XID)]


def test_a_message_that_is_not_utf8_comes_as_numbers(journalctl: Path) -> None:
    raw = list(XID.replace("pid=7", "pid=7, name=\udcff").encode("utf-8", "surrogateescape"))
    (journalctl / "rows").write_text(row(1, raw) + "\n")  # type: ignore[arg-type]
    assert [line["xid"] for line in events(journalctl)] == [79]


def test_the_previous_boots_events_are_picked_up_once_and_marked(
    journalctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (journalctl / "rows").write_text("".join(row(n) + "\n" for n in range(3)))
    monkeypatch.setattr(journal, "JournalReader", Silent)
    for _ in range(2):
        result = events(journalctl, previous_boot_lines=100)
        assert [line["monotonic_us"] for line in result] == [1000, 1001, 1002]
        assert all(line["previous_boot"] and line["boot_id"] == "0" * 32 for line in result)
        assert result[0]["time"].startswith("2026-09-21T")


def test_what_the_previous_boot_knew_does_not_hold_for_this_one(
    journalctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 2023"
    (journalctl / "rows").write_text(row(1, old) + "\n" + row(2) + "\n")
    monkeypatch.setattr(journal, "JournalReader", Silent)
    conf = config.check({"log": str(journalctl / "log"), "previous_boot_lines": 9}, "test")
    place = checkpoint.PositionFile(str(journalctl / "position"))
    result = monitor.Monitor(conf, journal.JournalReader(), place, environ={})
    result.lines.driver = "580.95.05"
    result.start()
    assert result.lines.driver == "580.95.05"
    result.lines.take(9, 9, "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")
    result.stop()
    lines = [json.loads(line) for line in (journalctl / "log").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "xid", "gpu-lost", "stop"]


def test_the_previous_boot_is_not_asked_for_unless_wanted(journalctl: Path) -> None:
    events(journalctl)
    assert "--boot=-1" not in (journalctl / "arguments").read_text()


def test_a_journal_that_hangs_does_not_stop_the_start(journalctl: Path) -> None:
    # The sleep has no output of ours, so only the shell's own end closes the pipe.
    ended = journalctl / "ended"
    (journalctl / "journalctl").write_text(f"#!/bin/sh\nsleep 60 > /dev/null\ntouch {ended}\n")
    assert list(journal.previous_boot(10, wait_s=0.3)) == []
    assert not ended.exists()
