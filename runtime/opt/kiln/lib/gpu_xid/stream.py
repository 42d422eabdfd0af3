"""Archived kernel logs (files, stdin) in, events out: what `replay` and `xid.parse` run."""

from . import event, host
from .catalogue import Catalogue
from .parse import parse_message, set_message_starts
from .pipeline import messages
from .prefix import strip

# What may stand between an SXid and its Severity and Data lines: other lines, but not for ever.
_DETAIL_LINES = 50
# An archive can hold anything (a disk image, a gigabyte without a newline); a kernel record is
# under 8 KiB, four times that when each byte of it is escaped.
_MAX_LINE = 16384
_MAX_READ = 65536


def events(lines, catalogue=None, notes=False):
    """Yield one dict per Xid or SXid of the lines (text or bytes) or of a binary file, in order.

    Keys as in the event log, plus `message` (the text behind code, pid and process). `time`,
    `seq` and `monotonic_us` are None where the line does not say them. An SXid comes with its
    Severity and Data lines in `detail`; an indented line belongs to the event before it.
    notes: also yield `gpu-lost` (fallen off the bus without an Xid), `uuid` and `driver`.
    Never raises for what the lines hold, and never holds more of a file than a long line.
    """
    catalogue = catalogue or Catalogue()
    set_message_starts(catalogue.entry("message starts") or ())
    state = _State(catalogue)
    for number, text in enumerate(_texts(lines), 1):
        for found in state.take(number, text.strip("\r\n")[:_MAX_LINE], notes):
            yield found
    for found in state.flush():
        yield found


def _texts(lines):
    """Lines as text. PowerShell's `>` writes UTF-16: ASCII with a NUL in between."""
    marks = (b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")
    utf16 = False
    for number, line in enumerate(_cut(lines) if hasattr(lines, "readline") else lines):
        if not isinstance(line, bytes):
            yield line
            continue
        data = line
        if not number and line.startswith(marks):
            utf16 = not line.startswith(marks[2])
            data = line[2:] if utf16 else line[3:]
        yield (data.replace(b"\0", b"") if utf16 else data).decode("utf-8", "replace")


def _cut(file):
    """The lines of a binary file; of a line that is none of the kernel's only the beginning."""
    while True:
        line = file.readline(_MAX_READ)
        if not line:
            return
        yield line
        while len(line) == _MAX_READ and line[-1:] != b"\n":
            line = file.readline(_MAX_READ)


class _State:
    def __init__(self, catalogue):
        self.catalogue = catalogue
        self.gpus = host.Gpus(())
        self.driver = None
        self.waiting = []  # (line number, event): held for lines that belong to it

    def take(self, number, text, notes):
        if text[:1] in (" ", "\t"):
            text = text.strip()
            if self.continues(number, text):
                return
        out = self.release(number)
        if "Xid" not in text and "NVRM" not in text:
            for found in out:
                yield found
            return
        stripped = strip(text)
        for fields in messages(stripped.text):
            kind = fields["kind"]
            if kind == "sxid-detail":
                self.detail(fields)
            elif kind in ("xid", "sxid"):
                # What follows a JSON line can be no continuation of the kernel's.
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
        for found in out:
            yield found

    def continues(self, number, text):
        """Add an indented line to the event just before it, unless it is an event of its own."""
        if not self.waiting or self.waiting[-1][0] != number - 1:
            return False
        last = self.waiting[-1][1]
        if parse_message(strip(text).text) is not None or len(last["raw"]) > _MAX_LINE:
            return False
        last["raw"] += "\n" + text
        last["message"] += "\n" + text
        self.waiting[-1] = (number, last)
        return True

    def event_of(self, fields, stripped):
        fields["injected"] = stripped.injected
        fields["driver"] = self.driver
        fields["count"] = stripped.count if stripped.count > 1 else None
        self.catalogue.classify(fields, self.driver)
        self.gpus.add_to(fields)
        found = event.gpu_event(fields, stripped.when or 0, None, stripped.seq, stripped.usec)
        if stripped.when is None:
            found["time"] = None
        found["message"] = fields["message"]
        return found

    def detail(self, fields):
        for _, found in self.waiting:
            if all(found.get(key) == fields[key] for key in ("sxid", "pci", "nvswitch")):
                found.setdefault("detail", []).append(fields["message"])
                return

    def release(self, number):
        """Events that no later line can add to any more. Order is kept."""
        out = []
        while self.waiting:
            at, found = self.waiting[0]
            complete = found["sxid"] is None or len(found.get("detail", ())) >= 2
            if at >= number or not (complete or number - at > _DETAIL_LINES):
                break
            out.append(self.waiting.pop(0)[1])
        return out

    def flush(self):
        out = [found for _, found in self.waiting]
        self.waiting = []
        return out
