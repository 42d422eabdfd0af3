"""The prefixes before the message in an archived line: of syslog, journalctl, dmesg and kmsg, and
those that `grep`, `pdsh`, `kubectl logs` and CloudWatch Logs add.

For files only (`replay`, `xid.parse`): the daemon reads records, whose form is known.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from . import journal
from .kmsg import unescape

# ASCII: `\d` also matches the digits of other scripts, which no kernel or logger writes.
_compiled = partial(re.compile, flags=re.ASCII)
# Bounded, because int() refuses thousands of digits.
_KMSG = _compiled(r"(\d{1,9}),(\d{1,20}),(\d{1,20}),[^;]{0,200};")
_COLOUR = _compiled(r"\x1b\[[0-9;]{0,20}m")
_BARE_COLOUR = _compiled(r"\[\d{1,2}(?:;\d{1,2}){0,3}m")  # copied from a place that drops ESC
_QUOTE = _compiled(r"(?:> ?){1,5}")  # an issue, a mail
_DELTA = r"(?: <[ +.\d]{1,30}>| {0,30})"  # dmesg -d, journalctl -o short-delta
_KERNEL_TIME = _compiled(r"\[ *(\d{1,12})(?:\.(\d{1,9}))?" + _DELTA + r"\](?:\[ *[TC]\d+\])? ")
_CALLER = _compiled(r"\[ *[TC]\d+\] ")
_CTIME = _compiled(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}" + _DELTA + r"\] ")
# dmesg -H: the minute, then the time since.
_HUMAN = _compiled(r"\[(?:[A-Z][a-z]{2} {0,2}\d{1,2} \d\d:\d\d| *\+\d{1,9}\.\d{1,9})\] ")
_ISO = _compiled(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)? "
)
_SYSLOG = _compiled(r"[A-Z][a-z]{2} [ \d]?\d \d\d:\d\d:\d\d(?:\.\d{1,9})? ")
_FULL = _compiled(
    r"[A-Z][a-z]{2} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?) (?:[A-Z]{3,5}|[+-]\d{2,4}) "
)
_UNIX = _compiled(r"(\d{9,11}\.\d{1,9}) ")
_DECODED = _compiled(r"[a-z0-9]{3,8} *:[a-z]{3,6} *: ")
_LEVEL = _compiled(r"<(\d{1,3})>(?:1 )?")
_HOST = _compiled(
    r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,254}|(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"
    r"|[0-9a-f:]{0,30}::[0-9a-f:.]{0,30}[0-9a-f]) "
    r"(?:kern\.[a-z]{3,7} )?"  # BusyBox
    r"(?=kernel: |kernel - |kernel\[\d+\]: |\[\d+\] NVRM|\[\d+\] nvidia|\[ *\d+\.\d+\] )"
)
# The collector of the line (a file and line number, a host, a pod), at the very beginning only:
# further on, such a word names a program that wrote the line itself.
_COLLECTED = _compiled(
    r"(?:\[pod/[^\]]{1,300}\] "
    r"|[A-Za-z0-9/][A-Za-z0-9./_-]{0,254}(?::(?:\d{1,9}:)?|-(?:\d{1,9}-)?) ?)"
    r"(?=\[ *\d+\.\d+|\[[A-Z][a-z]{2} |[A-Z][a-z]{2} [ \d]\d \d\d:|\d{4}-\d\d-\d\d[T ])"
)
# What grep puts before a bare message, without a space: a line number, or a file, which has a dot
# or a slash. A word and a space would be the program that wrote the line.
_GREPPED = _compiled(
    r"(?:(?=[^:]{0,254}[./])[A-Za-z0-9./][A-Za-z0-9./_-]{0,254}[:-](?:\d{1,9}[:-])?|\d{1,9}[:-])"
    r"(?=NVRM: |nvidia-nvswitch\d)"
)
_TALOS = _compiled(
    r"(?:[A-Za-z0-9][A-Za-z0-9._:-]{0,254}: )?([a-z]{3,8}): {1,8}[a-z]{3,7}: \[(?=\d{4}-\d\d-\d\dT)"
)
_CONTAINER = _compiled(r"std(?:out|err) [FP] ")  # log files of Kubernetes
_REPEATED = _compiled(r"message repeated (\d{1,9}) times: \[ ?(.*)\]$")
# A line of `dmesg --json`, `journalctl -o json-pretty`, `aws logs filter-log-events`, `aws logs
# get-query-results` or `aws logs tail --format json`; other JSON has one object per line.
_JSON_FIELD = _compiled(r'"(?:msg|MESSAGE|message|value|raw)" ?: ("(?:[^"\\]|\\.)*"),?$')
_MESSAGE = _compiled(r'"message" ?: ?("(?:[^"\\]|\\.)*")')
# An answer of CloudWatch Logs in one line: its list of events, alone or with what else it says.
_ANSWER = _compiled(r'(?:\{\s*"events"\s*:\s*)?\[\s*\{')
# A log stream, which `aws logs tail` prints before the message. Its name has neither : nor *.
_STREAM = _compiled(
    r"[^\s:*]{1,512} (?=\{\"|NVRM: |nvidia-nvswitch\d|\[ *\d+\.\d+|[A-Z][a-z]{2} [ \d]\d \d\d:)"
)
# A row of the CSV that the console of Logs Insights exports: a time, or a message with commas.
_CSV = _compiled(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?,"
    r'|"[^"]{0,200}NVRM: (?:[^"]|""){0,8000}",|[^{"]{0,600}"\{""'
)
_TAG = _compiled(r"kernel(?:: | - - - |\[\d+\]: )")
_PID = _compiled(r"\[\d+\] ")
_json = json.JSONDecoder(strict=False)  # an archive may hold a tab where JSON wants \t


class Stripped:
    """text: the message of the kernel. Times and numbers are None where the prefix has none."""

    __slots__ = ("count", "injected", "is_json", "seq", "text", "usec", "when")

    def __init__(self, text: str) -> None:
        self.text = text
        # UNIX seconds, only from a time with a zone (or UNIX time).
        self.when: float | None = None
        self.usec: int | None = None  # microseconds since boot
        self.seq: int | None = None
        self.injected = False
        self.count = 1  # the number of events that the line represents
        self.is_json = False


def strip(line: str) -> Stripped:
    """One archived line -> Stripped. Removes known prefixes in the order in which they occur."""
    if "\x1b" in line:
        line = _COLOUR.sub("", line)  # dmesg --color=always
    elif "[0m" in line:
        line = _BARE_COLOUR.sub("", line)
    if line.startswith(">"):
        line = _QUOTE.sub("", line, count=1)
    if _CSV.match(line):
        return _strip_csv(line)
    if line.lstrip()[:1] in ("{", '"'):
        return _strip_json(line)
    stripped = Stripped(line)
    match = _KMSG.match(line)
    if match:
        stripped.injected = int(match.group(1)) >= 8
        stripped.seq, stripped.usec = int(match.group(2)), int(match.group(3))
        stripped.text = unescape(line[match.end() :].encode("utf-8", "replace"))
        return stripped
    rest = line[8:] if line.startswith("MESSAGE=") else line
    match = _LEVEL.match(rest)
    if match:
        stripped.injected = int(match.group(1)) >= 8
        rest = rest[match.end() :]
    match = _DECODED.match(rest)
    if match:
        stripped.injected = not match.group().startswith("kern")
        rest = rest[match.end() :]
    match = _TALOS.match(rest)
    if match:
        stripped.injected = match.group(1) != "kern"
        when, _, stripped.text = rest[match.end() :].partition("]: ")
        _stamp(when + " ", stripped)
        return stripped
    rest = rest[6:] if rest.startswith("[...] ") else rest
    match = _COLLECTED.match(rest) or _GREPPED.match(rest)
    rest = rest[match.end() :] if match else rest
    rest = _collected_stamp(rest, stripped)
    if rest.startswith('{"'):
        logged = _strip_json(rest)
        logged.when = stripped.when if logged.when is None else logged.when
        return logged
    rest = _host(_stamp(rest, stripped))
    stripped.text = _kernel_time(rest, stripped)
    match = _REPEATED.match(stripped.text)  # rsyslog
    if match:
        stripped.count, stripped.text = int(match.group(1)), match.group(2)
    return stripped


def _strip_json(line: str) -> Stripped:
    """A line of journalctl or dmesg in JSON, of a container's log, or of the event log itself."""
    match = _JSON_FIELD.match(line.lstrip())
    try:
        row = {"log": _json.decode(match.group(1))} if match else _json.decode(line.strip())
    except (ValueError, RecursionError):
        row = None
    row = row if isinstance(row, dict) else {}
    stripped = Stripped("")
    if "MESSAGE" in row:
        stripped.injected, stripped.usec, stripped.text = journal.message(row)
        when = str(row.get("__REALTIME_TIMESTAMP", ""))
        if when.isdecimal() and when.isascii() and len(when) < 20:
            stripped.when = int(when) / 1000000.0
    elif isinstance(row.get("raw"), str) and row.get("event") in ("xid", "sxid", "gpu-lost"):
        stripped = _strip_event(row)
    elif isinstance(row.get("log"), str):
        stripped = strip(row["log"].rstrip("\n"))
    elif isinstance(row.get("message"), str) and isinstance(row.get("timestamp"), int):
        # An event of CloudWatch Logs, with its time in milliseconds.
        stripped = strip(row["message"].rstrip("\n"))
        if stripped.when is None and 0 < row["timestamp"] < 10**14:
            stripped.when = row["timestamp"] / 1000.0
    stripped.is_json = True
    return stripped


def _strip_csv(line: str) -> Stripped:
    import csv

    try:
        cells = next(csv.reader([line]), [])
    except csv.Error:
        cells = []
    texts = [cell for cell in cells if cell.startswith("{") or "NVRM: " in cell or "SXid" in cell]
    # Not as CSV a second time: a cell of a row is not a row.
    text = texts[0] if texts and not _CSV.match(texts[0]) else ""
    stripped = strip(text)
    stripped.is_json = True
    return stripped


def entries(line: str) -> list[str]:
    """The log entries in a line: those of an answer of CloudWatch Logs if it is one."""
    if _ANSWER.match(line) or (line.startswith("{") and line.count('"message"') > 1):
        return [str(_json.decode(text)) for text in _MESSAGE.findall(line)]
    return line.split("\t") if line.startswith('{"') and '\t{"' in line else [line]


def _strip_event(row: dict[str, Any]) -> Stripped:
    stripped = Stripped(row["raw"])
    stripped.injected = row.get("injected") is True
    for key, name in (("seq", "seq"), ("monotonic_us", "usec"), ("count", "count")):
        if isinstance(row.get(key), int):
            setattr(stripped, name, row[key])
    match = _ISO.match(str(row.get("time")) + " ")
    stripped.when = _iso_seconds(match) if match and match.group(8) else None
    return stripped


def _collected_stamp(rest: str, stripped: Stripped) -> str:
    """Remove CloudWatch's time and stream, before a message that may have a time of its own."""
    match = _ISO.match(rest)
    if not match:
        return rest
    after = rest[match.end() :]
    stream = _STREAM.match(after)
    if not stream and not after.startswith('{"') and not _SYSLOG.match(after):
        return rest
    if match.group(8):
        stripped.when = _iso_seconds(match)
    return after[stream.end() :] if stream else after


def _stamp(rest: str, stripped: Stripped) -> str:
    match = _ISO.match(rest)
    if match:
        if match.group(8):
            stripped.when = _iso_seconds(match)
        rest = rest[match.end() :]
        match = _CONTAINER.match(rest)
        return rest[match.end() :] if match else rest
    match = _UNIX.match(rest)
    if match:
        stripped.when = float(match.group(1))
        return rest[match.end() :]
    match = _SYSLOG.match(rest) or _FULL.match(rest) or _CTIME.match(rest) or _HUMAN.match(rest)
    if match:
        return rest[match.end() :]
    return _kernel_time(rest, stripped)


def _kernel_time(rest: str, stripped: Stripped) -> str:
    match = _KERNEL_TIME.match(rest)
    if match:
        stripped.usec = int(match.group(1)) * 1000000 + int(
            (match.group(2) or "0").ljust(6, "0")[:6]
        )
        rest = rest[match.end() :]
        match = _CALLER.match(rest)
        if match:
            rest = rest[match.end() :]
    return rest


def _host(rest: str) -> str:
    match = _HOST.match(rest)
    if match:
        rest = rest[match.end() :]
        match = _PID.match(rest)
        if match:
            return rest[match.end() :]
    match = _TAG.match(rest)
    return rest[match.end() :] if match else rest


def _iso_seconds(match: re.Match[str]) -> float | None:
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    days = _days(year, month, day)
    if days is None:
        return None
    seconds = days * 86400 + hour * 3600 + minute * 60 + second
    zone = match.group(8)
    if zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= offset if zone[0] == "+" else -offset
    return seconds + float("0." + (match.group(7) or "0"))


def _days(year: int, month: int, day: int) -> int | None:
    """Days since 1970-01-01 (proleptic Gregorian), or None for an invalid date."""
    if not (1970 <= year <= 9999 and 1 <= month <= 12 and 1 <= day <= 31):
        return None
    import datetime

    try:
        return datetime.date(year, month, day).toordinal() - 719163
    except ValueError:
        return None
