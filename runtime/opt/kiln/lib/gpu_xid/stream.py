"""Archived kernel logs (files, stdin) to events: used by `replay` and `xid.parse`."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from . import event, host
from .catalogue import Catalogue
from .parse import first_of_three, parse_message, set_message_starts
from .pipeline import messages
from .prefix import Stripped, entries, strip

# The most lines that may stand between an SXid and its Severity and Data lines.
_DETAIL_LINES = 50
# An archive can be anything (a disk image, a gigabyte without a newline); a kernel record has less
# than 8 KiB, or four times that when each byte is escaped.
_MAX_LINE = 16384
_MAX_READ = 65536
_GZIP = b"\x1f\x8b"
# The journal gives a message that is not UTF-8 as the list of its bytes.
_BYTES = re.compile('"MESSAGE" ?: ?\\[')


def events(
    lines: Iterable[str | bytes] | BinaryIO, catalogue: Catalogue | None = None, notes: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield one dict per Xid, SXid or lost GPU of the lines (text or bytes) or of a binary file, in
    order.

    Keys as in the event log, plus `message` (the text after code, pid and process). `time`, `seq`
    and `monotonic_us` are None where the line lacks them. The Severity and Data lines of an SXid
    are in `detail`; an indented line belongs to the event before it.
    A GPU that has fallen off the bus without an Xid 79 is `gpu-lost`, once until the driver loads
    again. notes: also yield `uuid` and `driver`.
    Never raises for the content of lines, and never holds more of a file than a long line.
    """
    catalogue = catalogue or Catalogue()
    set_message_starts(catalogue.entry("message starts") or ())
    state = _State(catalogue)
    for number, text in enumerate(_texts(lines), 1):
        for entry in entries(text.strip("\r\n")):
            yield from state.take(number, entry[:_MAX_LINE], notes)
    yield from state.flush()


def _texts(lines: Iterable[str | bytes] | BinaryIO) -> Iterator[str]:
    """Lines as text. UTF-16, which `>` of PowerShell writes, is ASCII with NULs in between."""
    marks = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")
    utf16 = False
    readline = getattr(lines, "readline", None)
    peek = getattr(lines, "peek", None)
    if readline and peek and peek(2)[:2] == _GZIP:
        readline = _unpacked(lines)
    for number, line in enumerate(_cut(readline) if readline else lines):
        if not isinstance(line, bytes):
            yield line
            continue
        data = line
        if not number and line.startswith(marks):
            utf16 = not line.startswith(marks[2])
            data = line[2:] if utf16 else line[3:]
        yield (data.replace(b"\0", b"") if utf16 else data).decode("utf-8", "replace")


def _unpacked(file: Any) -> Callable[[int], bytes]:
    """`readline` of a gzip archive, such as CloudWatch Logs exports to S3. Raises OSError where it
    is damaged."""
    import gzip
    import zlib

    archive = gzip.GzipFile(fileobj=file)

    def readline(most: int) -> bytes:
        try:
            return archive.readline(most)
        except (EOFError, OSError, zlib.error) as error:
            raise OSError(errno.EIO, f"damaged gzip archive: {error}") from None

    return readline


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
        self.fallen: set[str | None] = set()  # GPUs that are known to be off the bus
        # (line number, address) of the first of three lines about a lost GPU.
        self.named: tuple[int, str] | None = None

    def take(self, number: int, text: str, notes: bool) -> Iterator[dict[str, Any]]:
        if text[:1] in (" ", "\t"):
            text = text.strip()
            if self.continues(number, text):
                return
        out = self.release(number)
        if "Xid" not in text and "NVRM" not in text and not _BYTES.search(text):
            yield from out
            return
        stripped = strip(text)
        named = first_of_three(stripped.text)
        if named is not None:
            self.named = number, named
        for fields in messages(stripped.text):
            kind = fields["kind"]
            if kind == "gpu-lost" and not self.is_news(fields, number):
                continue
            if kind == "sxid-detail":
                self.detail(fields)
            elif kind in ("xid", "sxid", "gpu-lost"):
                # A line after a JSON line cannot be a continuation by the kernel.
                at = number - 1 if stripped.is_json else number
                self.waiting.append((at, self.event_of(fields, stripped)))
            else:
                if kind == "uuid":
                    self.gpus.learn(fields["pci"], fields["uuid"])
                elif kind == "driver":
                    self.driver = fields["driver"]
                    self.fallen.clear()
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

    def is_news(self, fields: dict[str, Any], number: int) -> bool:
        """Whether a lost GPU has not been reported yet; completes the fields of its event."""
        if fields["pci"] is None and self.named is not None and number - self.named[0] <= 2:
            fields["pci"] = self.named[1]
        gpu = host.short(fields["pci"]) if fields["pci"] else None
        known = gpu in self.fallen
        self.fallen.add(gpu)
        fields.update(xid=None, message="", pid=None, process=None, implied_xid=79)
        return not known

    def event_of(self, fields: dict[str, Any], stripped: Stripped) -> dict[str, Any]:
        fields["injected"] = stripped.injected
        fields["driver"] = self.driver
        fields["count"] = stripped.count if stripped.count > 1 else None
        lost = fields["kind"] == "gpu-lost"
        if lost or fields.get("xid") == 79:
            fields["xid"] = 79
            self.fallen.add(host.short(fields["pci"]) if fields["pci"] else None)
        self.catalogue.classify(fields, self.driver)
        self.gpus.add_to(fields)
        if lost:
            fields["xid"] = None
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
