"""Kernel logs to GPU events: dmesg, journalctl, syslog, consoles, CloudWatch Logs, our event log.

The driver's message decides, wherever it stands in a line. What stands before it gives time and
sequence number; otherwise it only serves to leave out a line that another program wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO

from kiln.base.paths import runtime_module

event = runtime_module("gpu_xid.event")
host = runtime_module("gpu_xid.host")
kmsg = runtime_module("gpu_xid.kmsg")
parse = runtime_module("gpu_xid.parse")
_catalog = runtime_module("gpu_xid.catalog")

# An archive can be anything (a disk image, a gigabyte without a newline), and JSON holds a whole
# console in one line. What stands before a message is short.
MAX_READ = 1 << 19
_MOST_BEFORE = 1000
# SXids that wait for their Severity and Data records.
_MOST_WAITING = 50

_HOLDS = re.compile(r"NVRM: Xid \(|SXid \(")
_MESSAGE = re.compile(r"NVRM: |nvidia-nvswitch[0-9]")
_COLOR = re.compile(r"\x1b\[[0-9;]{0,20}m")
_KMSG = re.compile(r"(?:^|[^0-9])([0-9]{1,9}),([0-9]{1,20}),([0-9]{1,20}),[^;]{0,200};$")
_DECODED = re.compile(r"\b(kern|user) *:[a-z]{3,6} *: ")  # dmesg -x
_UPTIME = re.compile(r"\[ *([0-9]{1,12})\.([0-9]{1,9})[\] ]")
_ISO = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,9}))?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})"
)
# A time in any form and language: its digits.
_STAMP = re.compile(
    r"(?:\[[^\[\]]{0,40}[0-9][.:,][0-9][^\[\]]{0,40}\]"
    r"|(?<![\w.-])[0-9]{1,4}[:-][0-9]{2}[:-][0-9]{2}[^\s\[]*|[0-9]{9,11}\.[0-9]{1,9}):?"
)
_KERNEL = re.compile(r"kernel(?:\[[0-9]+\])?:")
# A program's own log: the line of its source, the level.
_PROGRAM = re.compile(r"\.[a-z]{1,4}:[0-9]{1,6}\]|\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_JSON = re.compile(r"[\[{]\s*[\[{\"]")
_FIELD = re.compile(r'\s*(?:"(\w+)"\s*:\s*)?("(?:[^"\\]|\\.)*"),?\s*$')  # a line of indented JSON
# The keys with log text: of docker, dmesg, CloudWatch Logs, EC2's console, Systems Manager.
_TEXTS = ("log", "msg", "message", "value", "Output", "StandardOutputContent")


@dataclass
class LeftOut:
    """The lines that hold an Xid or SXid and made no event."""

    count: int = 0
    first: int = 0  # line number


@dataclass(slots=True)
class Line:
    """One line of a log; times and numbers are None where it has none."""

    text: str
    when: float | None = None  # UNIX seconds, only from a time with a zone
    usec: int | None = None  # microseconds since boot
    seq: int | None = None
    injected: bool = False
    count: int = 1  # the number of events that the line represents
    from_kernel: bool = False  # its source says so


def events(
    lines: Iterable[str | bytes] | BinaryIO, left_out: LeftOut | None = None
) -> Iterator[dict[str, Any]]:
    """Yield one dict per Xid, SXid or lost GPU of the lines (text or bytes) or of a binary file.

    Keys as in the event log, plus `message` (the text after code, pid and process). `time`, `seq`
    and `monotonic_us` are None where the line lacks them. The Severity and Data lines of an SXid
    are in `detail`. A GPU that has fallen off the bus without an Xid 79 is `gpu-lost`, once until
    the driver loads again. `left_out` counts the lines with an Xid or SXid of which no event was
    made. Never raises for the content of lines, and never holds more of a file than a long line.
    """
    log = _Log()
    readline = getattr(lines, "readline", None)
    every = iter(lambda: readline(MAX_READ), b"") if readline else iter(lines)
    for number, raw in enumerate(every, 1):
        text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
        text = text.strip("\r\n\ufeff")
        taken = log.taken
        entries = _entries(text)
        for line in entries:
            yield from log.take(line)
        held = min(len(_HOLDS.findall(text)), len(entries) or 1)
        missing = held - (log.taken - taken)
        if left_out is not None and missing > 0:
            left_out.first = left_out.first or number
            left_out.count += missing
    yield from log.waiting


def _entries(text: str) -> list[Line]:
    """The log lines in a line: those in its JSON, or itself."""
    if not _MESSAGE.search(text) and '"MESSAGE"' not in text:
        return []
    with suppress(ValueError, RecursionError):
        if field := _FIELD.match(text):
            value = json.loads(field[2], strict=False)
            return _json_lines(value if field[1] in (None, "raw", "MESSAGE") else {field[1]: value})
        start = _JSON.search(text, 0, _MOST_BEFORE)
        before = _head(text[: start.start()]) if start else None
        if start and before and not _MESSAGE.search(text, 0, start.start()):
            # A JSON text may hold a tab where JSON wants \t.
            return _json_lines(json.loads(text[start.start() :], strict=False), before.when)
    return [Line(text)]


def _json_lines(value: Any, when: float | None = None) -> list[Line]:
    """The log lines in a JSON value. Raises RecursionError for one that is nested too deeply."""
    if isinstance(value, str):
        lines = [line for text in value.splitlines() for line in _entries(text)]
        for line in lines:
            line.when = when if line.when is None else line.when
        return lines
    if isinstance(value, list):
        return [line for item in value for line in _json_lines(item, when)]
    if not isinstance(value, dict) or "level" in value or "logger" in value:
        return []  # of a program that logs in JSON
    if "MESSAGE" in value:
        return [_journal_line(value)]
    if isinstance(value.get("raw"), str) and value.get("event") in ("xid", "sxid", "gpu-lost"):
        return [_event_line(value)]
    at = value.get("timestamp")  # of CloudWatch Logs, in milliseconds
    when = at / 1000 if isinstance(at, int) and 0 < at < 10**14 else when
    return [
        line
        for key, item in value.items()
        if key in _TEXTS or not isinstance(item, str)
        for line in _json_lines(item, when)
    ]


def _journal_line(row: dict[str, Any]) -> Line:
    def number(key: str) -> int | None:
        text = str(row.get(key))
        return int(text) if re.fullmatch("[0-9]{1,19}", text) else None

    text = row["MESSAGE"]
    if isinstance(text, list):  # not UTF-8: the journal gives the bytes
        text = bytes(each & 255 for each in text if isinstance(each, int)).decode(
            "utf-8", "replace"
        )
    injected = row.get("SYSLOG_FACILITY", "0") != "0"
    from_kernel = row.get("_TRANSPORT", "kernel") == "kernel"
    when = number("__REALTIME_TIMESTAMP")
    return Line(
        text if from_kernel and isinstance(text, str) else "",
        when=None if when is None else when / 1000000,
        usec=number("_SOURCE_MONOTONIC_TIMESTAMP"),
        injected=injected,
        from_kernel=from_kernel,
    )


def _event_line(row: dict[str, Any]) -> Line:
    """A line of the event log."""
    seq, usec, count = (
        row[key] if isinstance(row.get(key), int) else None
        for key in ("seq", "monotonic_us", "count")
    )
    when = _seconds(_ISO.match(str(row.get("time"))))
    return Line(row["raw"], when, usec, seq, row.get("injected") is True, count or 1, True)


def _reduced(line: Line) -> bool:
    """Reduce a line to the driver's message; False if there is none or another program wrote it."""
    text = _COLOR.sub("", line.text)
    message = _MESSAGE.search(text, 0, _MOST_BEFORE)
    if not message:
        return False
    before, line.text = text[: message.start()], text[message.start() :]
    if line.from_kernel or not before:
        return True
    if record := _KMSG.search(before):
        priority, line.seq, line.usec = map(int, record.groups())
        line.injected = priority >= 8
        line.text = kmsg.unescape(line.text.encode("utf-8", "replace"))
        return True
    head = _head(before)
    if head:
        line.injected = head.injected
        line.when = line.when if head.when is None else head.when
        line.usec = head.usec
    return head is not None


def _head(before: str) -> Line | None:
    """Return the head of a message: its times. None if it names another program than the kernel."""
    head = Line("")
    if decoded := _DECODED.search(before):
        head.injected = decoded[1] != "kern"
        before = before[: decoded.start()] + before[decoded.end() :]
    for uptime in _UPTIME.finditer(before):
        head.usec = int(uptime[1]) * 1000000 + int(uptime[2].ljust(6, "0")[:6])
    for iso in _ISO.finditer(before):
        head.when = _seconds(iso)
    # A name before the time is who collected the line (pdsh, a login prompt); one behind it is who
    # wrote it.
    stamp = _STAMP.search(before)
    writer = _STAMP.sub(" ", before[stamp.start() :] if stamp else before)
    named = [word for word in writer.split() if word.endswith(":") and not _KERNEL.fullmatch(word)]
    quoted = before[-1:].isalnum() or before[-1:] in tuple("_-='\"`(")
    is_program = named or _PROGRAM.search(before) or (quoted and not before.endswith("MESSAGE="))
    return None if is_program else head


def _seconds(iso: re.Match[str] | None) -> float | None:
    """UNIX seconds of a match of `_ISO`."""
    try:
        at = datetime.strptime(f"{iso[1]}T{iso[2]}{iso[4]}", "%Y-%m-%dT%H:%M:%S%z") if iso else None
    except ValueError:
        return None
    return at.timestamp() + float(f"0.{iso[3] or 0}") if at and iso else None


class _Log:
    """Earlier content of a log that later lines refer to."""

    def __init__(self) -> None:
        self.catalog = _catalog.Catalog()
        parse.set_message_starts(self.catalog.entry("message starts") or ())
        self.gpus = host.Gpus(())
        self.driver: str | None = None
        self.taken = 0  # lines of which something was made
        self.waiting: list[dict[str, Any]] = []
        self.fallen: set[str | None] = set()  # GPUs that are known to be off the bus
        self.named: str | None = None  # the GPU in the first of three lines about a lost one

    def take(self, line: Line) -> Iterator[dict[str, Any]]:
        """Yield the events that are complete with this line."""
        if not _reduced(line):
            return
        if line.text.startswith("NVRM: The NVIDIA GPU "):
            self.named = parse.pci_address(line.text[21:].strip())
        for fields in parse.messages(line.text):
            kind = fields["kind"]
            if kind == "sxid-detail":
                self._add_detail(fields)
            elif kind == "sxid":
                self.taken += 1
                self.waiting.append(self._event(fields, line))
                if len(self.waiting) > _MOST_WAITING:
                    yield self.waiting.pop(0)
            elif kind == "xid" or (kind == "gpu-lost" and self._is_news(fields)):
                self.taken += kind == "xid"
                yield from self.waiting
                self.waiting.clear()
                yield self._event(fields, line)
            elif kind == "uuid":
                self.gpus.learn(fields["pci"], fields["uuid"])
            elif kind == "driver":
                self.driver = fields["driver"]
                self.fallen.clear()

    def _is_news(self, fields: dict[str, Any]) -> bool:
        """Return True if a lost GPU has not been reported yet; completes the fields of its
        event."""
        fields["pci"] = fields["pci"] or self.named
        gpu = host.short(fields["pci"]) if fields["pci"] else None
        is_known = gpu in self.fallen
        self.fallen.add(gpu)
        fields.update(xid=None, message="", pid=None, process=None, implied_xid=79)
        return not is_known

    def _event(self, fields: dict[str, Any], line: Line) -> dict[str, Any]:
        fields["injected"] = line.injected
        fields["driver"] = self.driver
        fields["count"] = line.count if line.count > 1 else None
        lost = fields["kind"] == "gpu-lost"
        if lost or fields.get("xid") == 79:
            fields["xid"] = 79
            self.fallen.add(host.short(fields["pci"]) if fields["pci"] else None)
        self.catalog.classify(fields, self.driver)
        self.gpus.add_to(fields)
        if lost:
            fields["xid"] = None
        row: dict[str, Any] = event.gpu_event(fields, line.when or 0, None, line.seq, line.usec)
        if line.when is None:
            row["time"] = None
        row["message"] = fields["message"]
        return row

    def _add_detail(self, fields: dict[str, Any]) -> None:
        for row in self.waiting:
            if all(row.get(key) == fields[key] for key in ("sxid", "pci", "nvswitch")):
                row.setdefault("detail", []).append(fields["message"])
                self.taken += 1
                return
