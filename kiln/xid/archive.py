"""Archived logs of any form to GPU events: dmesg, journalctl, syslog, consoles, CloudWatch Logs.

The driver's message decides, wherever it stands in a line. What stands before it gives time and
sequence number; otherwise it only serves to leave out a line that another program wrote.
"""

from __future__ import annotations

import csv
import errno
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO

from kiln.base.paths import runtime_module

event = runtime_module("gpu_xid.event")
host = runtime_module("gpu_xid.host")
kmsg = runtime_module("gpu_xid.kmsg")
parse = runtime_module("gpu_xid.parse")
_catalogue = runtime_module("gpu_xid.catalogue")
_cli = runtime_module("gpu_xid.cli")

# The most lines that may stand between an SXid and its Severity and Data lines.
_DETAIL_LINES = 50
# An archive can be anything (a disk image, a gigabyte without a newline). A kernel record has less
# than 8 KiB, or four times that when each byte is escaped; JSON holds a whole console in one line.
_MOST_BEFORE = 1000
_MAX_LINE = 16384
MAX_READ = 1 << 19

_HOLDS = re.compile(r"NVRM: Xid \(|SXid \(")
_MESSAGE = re.compile(r"NVRM: |nvidia-nvswitch[0-9]|detected NVSwitch (?:non-)?fatal error [0-9]")
# The journal gives a message that is not UTF-8 as the list of its bytes.
_MAY_MATTER = re.compile(_MESSAGE.pattern + r'|"MESSAGE" ?: ?\[')
_COLOR = re.compile(r"\x1b\[[0-9;]{0,20}m|\[[0-9]{1,2}(?:;[0-9]{1,2}){0,3}m")
_KMSG = re.compile(r"(?:^|[^0-9])([0-9]{1,9}),([0-9]{1,20}),([0-9]{1,20}),[^;]{0,200};")
_REPEATED = re.compile(r"message repeated ([0-9]{1,9}) times: \[ ?$")  # rsyslog
_PRIORITY = re.compile(r"(?:^|\s)<([0-9]{1,3})>")
# Facility and level in words: of `dmesg -x`, and of `talosctl dmesg`, which has the time behind it.
_DECODED = re.compile(
    r"(?:^|\s)([a-z0-9]{3,8}) *:(?:[a-z]{3,6} *: | {1,8}[a-z]{3,7}: (?=\[[0-9]{4}-))"
)
_UPTIME = re.compile(r"\[ *([0-9]{1,12})\.([0-9]{1,9})[\] ]")
_ISO = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,9}))?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})"
)
_UNIX = re.compile(r"(?:^|\s)([0-9]{9,11}\.[0-9]{1,9})\s")
# A time in any form and language: its digits.
_STAMP = re.compile(
    r"(?:\[[^\[\]]{0,40}[0-9][.:,][0-9][^\[\]]{0,40}\]"
    r"|(?<![\w.-])[0-9]{1,4}[:-][0-9]{2}[:-][0-9]{2}[^\s\[]*|[0-9]{9,11}\.[0-9]{1,9}):?"
)
# Evidence of a program other than the kernel: facility and name of BusyBox, the name of RFC 5424,
# a source file, the level of a program's own log.
_PROGRAM = re.compile(
    r"\s(?:user|daemon|auth|authpriv|syslog|cron|mail|local[0-7])\.[a-z]{3,6}\s"
    r"|T[0-9:]{8}\S* \S+ (?!kernel )\S+ \S+ \S+ (?:-|\[.*\])[\s\ufeff]*$"
    r"|\.[a-z]{1,4}:[0-9]{1,6}\]"
    r"|\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b"
)
_FABRIC_MANAGER = re.compile(
    r"detected NVSwitch (fatal|non-fatal) error ([0-9]{1,9}) on .{1,30} "
    r"pci bus id [0-9a-fA-F]{0,4}([0-9a-fA-F]{4}:[0-9a-fA-F:.]{7}) .{1,30} port ([0-9]{1,9})"
)
_JSON = re.compile(r"[\[{]\s*[\[{\"]")
_FIELD = re.compile(r'\s*(?:"(\w+)"\s*:\s*)?("(?:[^"\\]|\\.)*"),?\s*$')  # a line of indented JSON
# The keys with log text: of docker, dmesg, CloudWatch Logs, EC2's console, Systems Manager.
_TEXTS = ("log", "msg", "message", "value", "Output", "StandardOutputContent")
_CELL = re.compile(r'(?:[^"]{0,600},)?"')
_json = json.JSONDecoder(strict=False)  # an archive may hold a tab where JSON wants \t


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
    """Yield one dict per Xid, SXid or lost GPU of the lines (text or bytes) or of a binary file, in
    order.

    Keys as in the event log, plus `message` (the text after code, pid and process). `time`, `seq`
    and `monotonic_us` are None where the line lacks them. The Severity and Data lines of an SXid
    are in `detail`; an indented line belongs to the event before it.
    A GPU that has fallen off the bus without an Xid 79 is `gpu-lost`, once until the driver loads
    again. `left_out` counts the lines with an Xid or SXid of which no event was made.
    Never raises for the content of lines, and never holds more of a file than a long line.
    """
    state = _State()
    for number, text, rest in _texts(lines):
        taken = state.taken
        entries = [] if rest else _entries(text)
        for line in entries:
            quoted = line.text != text
            state.number += 1
            yield from state.take(line)
            # The line after one in JSON cannot be a continuation by the kernel.
            state.number += quoted and line is entries[-1]
        held = min(len(_HOLDS.findall(text)), len(entries) or 1)
        missing = held - (state.taken - taken)
        if left_out is not None and missing > 0:
            left_out.first = left_out.first or number
            left_out.count += missing
    yield from state.flush()


def printable_line(text: str) -> str:
    """A text from a kernel log without terminal control characters."""
    shown: str = _cli.printable(text)
    return shown


def _texts(lines: Iterable[str | bytes] | BinaryIO) -> Iterator[tuple[int, str, bool]]:
    """(line number, text, whether it is the rest of a line that is longer than any log's).

    UTF-16, which `>` of PowerShell writes, is ASCII with NULs in between.
    """
    readline = getattr(lines, "readline", None)
    if readline and getattr(lines, "peek", None) and lines.peek(2)[:2] == b"\x1f\x8b":  # type: ignore[union-attr]
        readline = _unpacked(lines)
    utf16 = rest = False
    number = 0
    for line in iter(lambda: readline(MAX_READ), b"") if readline else lines:
        number += not rest
        text = line if isinstance(line, str) else ""
        if isinstance(line, bytes):
            utf16 = utf16 or (number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"))
            text = (line.replace(b"\0", b"") if utf16 else line).decode("utf-8", "replace")
        yield number, text.strip("\r\n\ufeff"), rest
        rest = bool(readline) and len(line) == MAX_READ and line[-1:] != b"\n"


def _unpacked(file: Any) -> Callable[[int], bytes]:
    """`readline` of a gzip archive, such as CloudWatch Logs exports to S3. Raises OSError where it
    is damaged."""
    archive = gzip.GzipFile(fileobj=file)

    def readline(most: int) -> bytes:
        try:
            return archive.readline(most)
        except (EOFError, OSError, zlib.error) as error:
            raise OSError(errno.EIO, f"damaged gzip archive: {error}") from None

    return readline


def _entries(text: str) -> list[Line]:
    """The log lines in a line: those in its JSON or CSV, or itself."""
    text = text.removeprefix("data: ")  # journalctl -o json-sse
    if not _MAY_MATTER.search(text):
        return [Line(text)]
    with suppress(ValueError, RecursionError):
        field = _FIELD.match(text)
        if field:
            key, value = field[1], json.loads(field[2], strict=False)
            return _json_lines(value if key in (None, "raw", "MESSAGE") else {key: value})
        start = _JSON.search(text, 0, _MOST_BEFORE)
        before = _head(text[: start.start()]) if start and start.start() else Line("")
        if start and before and not _MESSAGE.search(text, 0, start.start()):
            lines, end = [], start.start()
            while text[end : end + 1] in ("{", "["):
                value, end = _json.raw_decode(text, end)
                lines += _json_lines(value, before.when)
                end += len(text[end:]) - len(text[end:].lstrip())
            return lines
    with suppress(csv.Error):
        cells = next(csv.reader([text]), []) if _CELL.match(text) else []
        if len(cells) > 1:
            wanted = filter(_MAY_MATTER.search, cells)
            return [line for cell in wanted for line in _entries(cell)]
    return [Line(text)]


def _json_lines(value: Any, when: float | None = None) -> list[Line]:
    """The log lines in a JSON value. Raises RecursionError for one that is nested too deeply."""
    if isinstance(value, str):
        lines = [line for text in value.split("\n") for line in _entries(text.rstrip("\r"))]
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
    if isinstance(at, int) and 0 < at < 10**14:
        when = at / 1000.0
    return [
        line
        for key, item in value.items()
        if key in _TEXTS or not isinstance(item, str)
        for line in _json_lines(item, when)
    ]


def _journal_line(row: dict[str, Any]) -> Line:
    text = row.get("MESSAGE")
    if isinstance(text, list):  # not UTF-8: the journal gives the bytes
        numbers = (value & 255 for value in text if isinstance(value, int))
        text = bytes(numbers).decode("utf-8", "replace")
    text = text if isinstance(text, str) else ""
    name = row.get("SYSLOG_IDENTIFIER")
    injected = row.get("SYSLOG_FACILITY", "0") != "0"
    # Of lines written to /dev/kmsg from user space, journald moves a leading `word:` there.
    if injected and isinstance(name, str) and name not in ("", "kernel", "unknown"):
        text = f"{name}: {text}"
    at = str(row.get("_SOURCE_MONOTONIC_TIMESTAMP"))
    usec = int(at) if at.isdecimal() and at.isascii() and len(at) < 20 else None
    from_kernel = not injected and row.get("_TRANSPORT", "kernel") == "kernel"
    when = str(row.get("__REALTIME_TIMESTAMP", ""))
    usable = when.isdecimal() and when.isascii() and len(when) < 20
    return Line(
        text if from_kernel or injected else f"{row.get('SYSLOG_IDENTIFIER', 'unknown')}: {text}",
        when=int(when) / 1000000.0 if usable else None,
        usec=usec,
        injected=injected,
        from_kernel=from_kernel,
    )


def _event_line(row: dict[str, Any]) -> Line:
    """A line of the event log."""
    iso = _ISO.match(str(row.get("time")))
    seq, usec, count = (
        row[key] if isinstance(row.get(key), int) else None
        for key in ("seq", "monotonic_us", "count")
    )
    return Line(row["raw"], _seconds(iso), usec, seq, row.get("injected") is True, count or 1, True)


def _read(line: Line) -> None:
    """Reduce a line to the driver's message; to "" if there is none or another program wrote it."""
    text = line.text[:_MAX_LINE]
    if "\x1b" in text or "[0m" in text:  # dmesg --color=always; a place that drops ESC
        text = _COLOR.sub("", text)
    message = _MESSAGE.search(text)
    line.text = ""
    if not message or message.start() > _MOST_BEFORE:
        return
    before, text = text[: message.start()], text[message.start() :]
    if line.from_kernel or not before:
        line.text = text
        return
    record = _KMSG.search(before)
    if record:
        priority, line.seq, line.usec = map(int, record.groups())
        line.injected = priority >= 8
        line.text = kmsg.unescape(text.encode("utf-8", "replace"))
        return
    if text.startswith("detected"):
        # Elsewhere than in fabric manager's own log the kernel's line of the same error is there.
        line.text = text if re.search(r"\[tid [0-9]+\] $", before) else ""
        return
    repeated = _REPEATED.search(before)
    if repeated:
        line.count = int(repeated[1])
        before, text = before[: repeated.start()], text.removesuffix("]")
    head = _head(before)
    if head:
        line.text = text
        line.injected = line.injected or head.injected
        line.when = line.when if head.when is None else head.when
        line.usec = line.usec if head.usec is None else head.usec


def _head(before: str) -> Line | None:
    """What stands before a message: its times. None if it names another program than the kernel."""
    level = _PRIORITY.search(before)
    head = Line("", injected=bool(level and int(level[1]) >= 8))
    decoded = _DECODED.search(before)
    if decoded:
        head.injected = decoded[1] != "kern"
        before = before[: decoded.start()] + " " + before[decoded.end() :]
    for uptime in _UPTIME.finditer(before):
        head.usec = int(uptime[1]) * 1000000 + int(uptime[2].ljust(6, "0")[:6])
    for iso in _ISO.finditer(before):
        head.when = _seconds(iso)
    unix = _UNIX.search(before)
    head.when = float(unix[1]) if unix else head.when
    return None if _names_program(before) else head


def _names_program(before: str) -> bool:
    # A name before the time is who collected the line (pdsh, a login prompt); one behind it is who
    # wrote it.
    stamp = _STAMP.search(before)
    collector = before[: stamp.start()] if stamp else ""
    writer = _STAMP.sub(" ", before[len(collector) :])
    if _PROGRAM.search(before) or not re.fullmatch(r"[\w .,]*", collector.partition(": ")[2]):
        return True
    if any(
        word.endswith(":") and not re.fullmatch(r"kernel(?:\[[0-9]+\])?:", word)
        for word in re.split(r"\s", writer)[:-1]
    ):
        return True
    # Without a space: what grep puts there, a file or a number; or a program's quotation mark.
    name = before.rstrip("0123456789:-")
    grepped = name != before and (not name or bool(re.fullmatch(r"[^\s:./]*[./][^\s:]*", name)))
    quoted = before[-1:].isalnum() or before[-1:] in "_:-='\"`("
    return quoted and not grepped and not before.endswith("MESSAGE=")


def _seconds(iso: re.Match[str] | None) -> float | None:
    """UNIX seconds of a match of `_ISO`."""
    try:
        at = datetime.strptime(f"{iso[1]}T{iso[2]}{iso[4]}", "%Y-%m-%dT%H:%M:%S%z") if iso else None
    except ValueError:
        return None
    return at.timestamp() + float(f"0.{iso[3] or 0}") if at and iso else None


class _State:
    def __init__(self) -> None:
        self.catalogue = _catalogue.Catalogue()
        parse.set_message_starts(self.catalogue.entry("message starts") or ())
        self.gpus = host.Gpus(())
        self.driver: str | None = None
        self.number = 0  # of the line, with those in JSON
        self.taken = 0  # lines of which something was made
        # (line number, event), held for lines that belong to the event.
        self.waiting: list[tuple[int, dict[str, Any]]] = []
        self.fallen: set[str | None] = set()  # GPUs that are known to be off the bus
        # (line number, address) of the first of three lines about a lost GPU.
        self.named: tuple[int, str] | None = None

    def take(self, line: Line) -> Iterator[dict[str, Any]]:
        text = line.text
        if text[:1] in (" ", "\t"):
            line.text = text.strip()
        matters = _MESSAGE.search(line.text)
        raw = line.text
        if matters:
            _read(line)
        if text[:1] in (" ", "\t") and self.continues(line, raw):
            return
        yield from self.release()
        if not matters or not line.text:
            return
        if line.text.startswith("NVRM: The NVIDIA GPU "):
            address = parse.pci_address(line.text[21:].strip())
            self.named = (self.number, address) if address else self.named
        for fields in _messages(line.text):
            kind = fields["kind"]
            if kind == "sxid-detail":
                self.detail(fields)
            elif kind in ("xid", "sxid") or (kind == "gpu-lost" and self.is_news(fields)):
                self.taken += kind != "gpu-lost"
                self.waiting.append((self.number, self.event_of(fields, line)))
            elif kind == "uuid":
                self.gpus.learn(fields["pci"], fields["uuid"])
            elif kind == "driver":
                self.driver = fields["driver"]
                self.fallen.clear()

    def continues(self, line: Line, text: str) -> bool:
        """Add an indented line to the event just before it, unless it is itself an event."""
        if not self.waiting or self.waiting[-1][0] != self.number - 1:
            return False
        last = self.waiting[-1][1]
        if len(last["raw"]) > _MAX_LINE or any(_messages(line.text)):
            return False
        last["raw"] += "\n" + text
        last["message"] += "\n" + text
        self.waiting[-1] = (self.number, last)
        return True

    def is_news(self, fields: dict[str, Any]) -> bool:
        """Whether a lost GPU has not been reported yet; completes the fields of its event."""
        if fields["pci"] is None and self.named is not None and self.number - self.named[0] <= 2:
            fields["pci"] = self.named[1]
        gpu = host.short(fields["pci"]) if fields["pci"] else None
        is_known = gpu in self.fallen
        self.fallen.add(gpu)
        fields.update(xid=None, message="", pid=None, process=None, implied_xid=79)
        return not is_known

    def event_of(self, fields: dict[str, Any], line: Line) -> dict[str, Any]:
        fields["injected"] = line.injected
        fields["driver"] = self.driver
        fields["count"] = line.count if line.count > 1 else None
        lost = fields["kind"] == "gpu-lost"
        if lost or fields.get("xid") == 79:
            fields["xid"] = 79
            self.fallen.add(host.short(fields["pci"]) if fields["pci"] else None)
        self.catalogue.classify(fields, self.driver)
        self.gpus.add_to(fields)
        if lost:
            fields["xid"] = None
        row: dict[str, Any] = event.gpu_event(fields, line.when or 0, None, line.seq, line.usec)
        if line.when is None:
            row["time"] = None
        row["message"] = fields["message"]
        return row

    def detail(self, fields: dict[str, Any]) -> None:
        for _, row in self.waiting:
            if all(row.get(key) == fields[key] for key in ("sxid", "pci", "nvswitch")):
                row.setdefault("detail", []).append(fields["message"])
                self.taken += 1
                return

    def release(self) -> Iterator[dict[str, Any]]:
        """Events to which no later line can belong, in order."""
        while self.waiting:
            at, row = self.waiting[0]
            complete = row["sxid"] is None or len(row.get("detail", ())) >= 2
            if at >= self.number or not (complete or self.number - at > _DETAIL_LINES):
                return
            yield self.waiting.pop(0)[1]

    def flush(self) -> list[dict[str, Any]]:
        return [row for _, row in self.waiting]


def _messages(text: str) -> Iterable[dict[str, Any]]:
    """The messages of the driver in a text, or the error that fabric manager reports."""
    error = _FABRIC_MANAGER.match(text)
    if not error:
        messages: Iterable[dict[str, Any]] = parse.messages(text)
        return messages
    word, code, pci, port = error.groups()
    fields = parse.parse_message(
        f"nvidia-nvswitch0: SXid (PCI:{pci}): {code}, {word.capitalize()}, Link {port}"
    )
    return [fields | {"nvswitch": None, "message": text, "raw": text}] if fields else []
