"""What stands before the kernel's message in an archived line: syslog, journalctl, dmesg, kmsg,
and what `grep`, `pdsh`, `kubectl logs` and `aws logs tail` put before that.

For files only (`replay`, `xid.parse`): the daemon reads records, which need no guessing.
"""

import re

from . import journal, lean
from .kmsg import unescape

_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
# Bounded: int() refuses thousands of digits.
_KMSG = re.compile(r"(\d{1,9}),(\d{1,20}),(\d{1,20}),[^;]{0,200};")
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")
_BARE_COLOUR = re.compile(r"\[\d{1,2}(?:;\d{1,2}){0,3}m")  # copied from where ESC is not kept
_QUOTE = re.compile(r"(?:> ?){1,5}")  # an issue, a mail
_DELTA = r"(?: <[ +.\d]{1,30}>| {0,30})"  # dmesg -d, journalctl -o short-delta
_KERNEL_TIME = re.compile(r"\[ *(\d{1,12})(?:\.(\d{1,9}))?" + _DELTA + r"\](?:\[ *[TC]\d+\])? ")
_CALLER = re.compile(r"\[ *[TC]\d+\] ")
_CTIME = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}" + _DELTA + r"\] ")
# dmesg -H: the minute, then what has passed since.
_HUMAN = re.compile(r"\[(?:[A-Z][a-z]{2} {0,2}\d{1,2} \d\d:\d\d| *\+\d{1,9}\.\d{1,9})\] ")
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)? "
)
_SYSLOG = re.compile(r"[A-Z][a-z]{2} [ \d]?\d \d\d:\d\d:\d\d(?:\.\d{1,9})? ")
_FULL = re.compile(
    r"[A-Z][a-z]{2} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?) (?:[A-Z]{3,5}|[+-]\d{2,4}) "
)
_UNIX = re.compile(r"(\d{9,11}\.\d{1,9}) ")
_DECODED = re.compile(r"[a-z0-9]{3,8} *:[a-z]{3,6} *: ")
_LEVEL = re.compile(r"<(\d{1,3})>(?:1 )?")
_HOST = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,254}|(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"
    r"|[0-9a-f:]{0,30}::[0-9a-f:.]{0,30}[0-9a-f]) "
    r"(?:kern\.[a-z]{3,7} )?"  # BusyBox
    r"(?=kernel: |kernel - |kernel\[\d+\]: |\[\d+\] NVRM|\[\d+\] nvidia|\[ *\d+\.\d+\] )"
)
# Who collected the line (a file and line number, a host, a pod), at the very beginning only: in
# the middle such a word is the name of a program that wrote the line itself.
_COLLECTED = re.compile(
    r"(?:\[pod/[^\]]{1,300}\] |[A-Za-z0-9/][A-Za-z0-9./_-]{0,254}:(?:\d{1,9}:)? ?)"
    r"(?=\[ *\d+\.\d+|\[[A-Z][a-z]{2} |[A-Z][a-z]{2} [ \d]\d \d\d:|\d{4}-\d\d-\d\d[T ])"
)
_TALOS = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9._:-]{0,254}: )?([a-z]{3,8}): {1,8}[a-z]{3,7}: \[(?=\d{4}-\d\d-\d\dT)"
)
_CONTAINER = re.compile(r"std(?:out|err) [FP] ")  # Kubernetes' log files
_REPEATED = re.compile(r"message repeated (\d{1,9}) times: \[ ?(.*)\]$")
# A line of `dmesg --json` or `journalctl -o json-pretty`; other JSON is one object a line.
_JSON_FIELD = re.compile(r'"(?:msg|MESSAGE)" ?: ("(?:[^"\\]|\\.)*"),?$')
_TAG = re.compile(r"kernel(?:: | - - - |\[\d+\]: )")
_PID = re.compile(r"\[\d+\] ")


class Stripped:
    """text: the kernel's message. Times and numbers are None where the prefix had none."""

    __slots__ = ("count", "injected", "is_json", "seq", "text", "usec", "when")

    def __init__(self, text):
        self.text = text
        self.when = None  # UNIX seconds, only from a time with a zone (or UNIX time)
        self.usec = None  # microseconds since boot
        self.seq = None
        self.injected = False
        self.count = 1  # events that the line stands for
        self.is_json = False


def strip(line):
    """One archived line -> Stripped. Takes off what it knows, in the order it can stand there."""
    if "\x1b" in line:
        line = _COLOUR.sub("", line)  # dmesg --color=always
    elif "[0m" in line:
        line = _BARE_COLOUR.sub("", line)
    if line.startswith(">"):
        line = line[_QUOTE.match(line).end() :]
    if line.lstrip()[:1] in ("{", '"'):
        return _strip_json(line)
    found = Stripped(line)
    match = _KMSG.match(line)
    if match:
        found.injected = int(match.group(1)) >= 8
        found.seq, found.usec = int(match.group(2)), int(match.group(3))
        found.text = unescape(line[match.end() :].encode("utf-8", "replace"))
        return found
    rest = line[8:] if line.startswith("MESSAGE=") else line
    match = _LEVEL.match(rest)
    if match:
        found.injected = int(match.group(1)) >= 8
        rest = rest[match.end() :]
    match = _DECODED.match(rest)
    if match:
        found.injected = not match.group().startswith("kern")
        rest = rest[match.end() :]
    match = _TALOS.match(rest)
    if match:
        found.injected = match.group(1) != "kern"
        when, _, found.text = rest[match.end() :].partition("]: ")
        _stamp(when + " ", found)
        return found
    rest = rest[6:] if rest.startswith("[...] ") else rest
    match = _COLLECTED.match(rest)
    rest = rest[match.end() :] if match else rest
    rest = _host(_stamp(rest, found))
    found.text = _kernel_time(rest, found)
    match = _REPEATED.match(found.text)  # rsyslog
    if match:
        found.count, found.text = int(match.group(1)), match.group(2)
    return found


def _strip_json(line):
    """A line of journalctl or dmesg in JSON, of a container's log, or of the event log itself."""
    match = _JSON_FIELD.match(line.lstrip())
    try:
        row = {"log": lean.loads(match.group(1))} if match else lean.loads(line)
    except ValueError:
        row = None
    row = row if isinstance(row, dict) else {}
    found = Stripped("")
    if "MESSAGE" in row:
        found.injected, found.usec, found.text = journal.message(row)
        when = str(row.get("__REALTIME_TIMESTAMP", ""))
        if when.isdigit() and len(when) < 20:
            found.when = int(when) / 1000000.0
    elif isinstance(row.get("raw"), str) and row.get("event") in ("xid", "sxid"):
        found = _strip_event(row)
    elif isinstance(row.get("log"), str):
        found = strip(row["log"].rstrip("\n"))
    found.is_json = True
    return found


def _strip_event(row):
    found = Stripped(row["raw"])
    found.injected = row.get("injected") is True
    for key, name in (("seq", "seq"), ("monotonic_us", "usec"), ("count", "count")):
        if isinstance(row.get(key), int):
            setattr(found, name, row[key])
    match = _ISO.match(str(row.get("time")) + " ")
    found.when = _iso_seconds(match) if match and match.group(8) else None
    return found


def _stamp(rest, found):
    match = _ISO.match(rest)
    if match:
        if match.group(8):
            found.when = _iso_seconds(match)
        rest = rest[match.end() :]
        match = _CONTAINER.match(rest)
        return rest[match.end() :] if match else rest
    match = _UNIX.match(rest)
    if match:
        found.when = float(match.group(1))
        return rest[match.end() :]
    match = _SYSLOG.match(rest) or _FULL.match(rest) or _CTIME.match(rest) or _HUMAN.match(rest)
    if match:
        return rest[match.end() :]
    return _kernel_time(rest, found)


def _kernel_time(rest, found):
    match = _KERNEL_TIME.match(rest)
    if match:
        found.usec = int(match.group(1)) * 1000000 + int((match.group(2) or "0").ljust(6, "0")[:6])
        rest = rest[match.end() :]
        match = _CALLER.match(rest)
        if match:
            rest = rest[match.end() :]
    return rest


def _host(rest):
    match = _HOST.match(rest)
    if match:
        rest = rest[match.end() :]
        match = _PID.match(rest)
        if match:
            return rest[match.end() :]
    match = _TAG.match(rest)
    return rest[match.end() :] if match else rest


def _iso_seconds(match):
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


def _days(year, month, day):
    """Days since 1970-01-01 (proleptic Gregorian), or None for what is no date we know."""
    if not (1970 <= year <= 9999 and 1 <= month <= 12 and 1 <= day <= 31):
        return None
    import datetime

    try:
        return datetime.date(year, month, day).toordinal() - 719163
    except ValueError:
        return None
