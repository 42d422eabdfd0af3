"""Archived kernel logs (files, stdin) to events: used by `replay` and `xid.parse`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from . import event, host
from .catalogue import Catalogue
from .parse import parse_message, set_message_starts
from .pipeline import messages
from .prefix import Stripped, strip

# The most lines that may stand between an SXid and its Severity and Data lines.
_DETAIL_LINES = 50
# An archive can be anything (a disk image, a gigabyte without a newline); a kernel record has less
# than 8 KiB, or four times that when each byte is escaped.
_MAX_LINE = 16384
_MAX_READ = 65536


def events(
    lines: Iterable[str | bytes] | BinaryIO, catalogue: Catalogue | None = None, notes: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield one dict per Xid or SXid of the lines (text or bytes) or of a binary file, in order.

    Keys as in the event log, plus `message` (the text after code, pid and process). `time`, `seq`
    and `monotonic_us` are None where the line lacks them. The Severity and Data lines of an SXid
    are in `detail`; an indented line belongs to the event before it.
    notes: also yield `gpu-lost` (fallen off the bus without an Xid), `uuid` and `driver`.
    Never raises for the content of lines, and never holds more of a file than a long line.
    """
    catalogue = catalogue or Catalogue()
    set_message_starts(catalogue.entry("message starts") or ())
    state = _State(catalogue)
    for number, text in enumerate(_texts(lines), 1):
        yield from state.take(number, text.strip("\r\n")[:_MAX_LINE], notes)
    yield from state.flush()


def _texts(lines: Iterable[str | bytes] | BinaryIO) -> Iterator[str]:
    """Lines as text. UTF-16, which `>` of PowerShell writes, is ASCII with NULs in between."""
    marks = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")
    utf16 = False
    readline = getattr(lines, "readline", None)
    for number, line in enumerate(_cut(readline) if readline else lines):
        if not isinstance(line, bytes):
            yield line
            continue
        data = line
        if not number and line.startswith(marks):
            utf16 = not line.startswith(marks[2])
            data = line[2:] if utf16 else line[3:]
        yield (data.replace(b"\0", b"") if utf16 else data).decode("utf-8", "replace")


def _cut(readline: Callable[[int], bytes]) -> Iterator[bytes]:
    """The lines of a binary file; of lines longer than any kernel line, only the beginning."""
    while True:
        line = readline(_MAX_READ)
        if not line:
            return
        yield line
        while len(line) == _MAX_READ and line[-1:] != b"\n":
            line = readline(_MAX_READ)


class _State:
    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.gpus = host.Gpus(())
        self.driver: str | None = None
        # (line number, event), held for lines that belong to the event.
        self.waiting: list[tuple[int, dict[str, Any]]] = []

    def take(self, number: int, text: str, notes: bool) -> Iterator[dict[str, Any]]:
        if text[:1] in (" ", "\t"):
            text = text.strip()
            if self.continues(number, text):
                return
        out = self.release(number)
        if "Xid" not in text and "NVRM" not in text:
            yield from out
            return
        stripped = strip(text)
        for fields in messages(stripped.text):
            kind = fields["kind"]
            if kind == "sxid-detail":
                self.detail(fields)
            elif kind in ("xid", "sxid"):
                # A line after a JSON line cannot be a continuation by the kernel.
                at = number - 1 if stripped.is_json else number
                self.waiting.append((at, self.event_of(fields, stripped)))
            else:
                if kind == "uuid":
                    self.gpus.learn(fields["pci"], fields["uuid"])
                elif kind == "driver":
                    self.driver = fields["driver"]
                if notes:
                    fields["event"] = fields.pop("kind")
                    out.append(fields)
        yield from out

    def continues(self, number: int, text: str) -> bool:
        """Add an indented line to the event just before it, unless it is itself an event."""
        if not self.waiting or self.waiting[-1][0] != number - 1:
            return False
        last = self.waiting[-1][1]
        if parse_message(strip(text).text) is not None or len(last["raw"]) > _MAX_LINE:
            return False
        last["raw"] += "\n" + text
        last["message"] += "\n" + text
        self.waiting[-1] = (number, last)
        return True

    def event_of(self, fields: dict[str, Any], stripped: Stripped) -> dict[str, Any]:
        fields["injected"] = stripped.injected
        fields["driver"] = self.driver
        fields["count"] = stripped.count if stripped.count > 1 else None
        self.catalogue.classify(fields, self.driver)
        self.gpus.add_to(fields)
        line = event.gpu_event(fields, stripped.when or 0, None, stripped.seq, stripped.usec)
        if stripped.when is None:
            line["time"] = None
        line["message"] = fields["message"]
        return line

    def detail(self, fields: dict[str, Any]) -> None:
        for _, line in self.waiting:
            if all(line.get(key) == fields[key] for key in ("sxid", "pci", "nvswitch")):
                line.setdefault("detail", []).append(fields["message"])
                return

    def release(self, number: int) -> list[dict[str, Any]]:
        """Events to which no later line can belong, in order."""
        out = []
        while self.waiting:
            at, line = self.waiting[0]
            complete = line["sxid"] is None or len(line.get("detail", ())) >= 2
            if at >= number or not (complete or number - at > _DETAIL_LINES):
                break
            out.append(self.waiting.pop(0)[1])
        return out

    def flush(self) -> list[dict[str, Any]]:
        out = [line for _, line in self.waiting]
        self.waiting = []
        return out
