"""What stands before the kernel's message in an archived line: syslog, journalctl, dmesg, kmsg.

For files only (`replay`, `xid.parse`): the daemon reads records, which need no guessing.
"""

import re

from .kmsg import unescape

_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
# Bounded: int() refuses thousands of digits.
_KMSG = re.compile(r"(\d{1,9}),(\d{1,20}),(\d{1,20}),[^;]{0,200};")
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")
_KERNEL_TIME = re.compile(r"\[ *(\d{1,12})(?:\.(\d{1,9}))?\] ")
_CALLER = re.compile(r"\[ *[TC]\d+\] ")
_CTIME = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ")
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)? "
)
_SYSLOG = re.compile(r"[A-Z][a-z]{2} [ \d]?\d \d\d:\d\d:\d\d(?:\.\d{1,9})? ")
_FULL = re.compile(r"[A-Z][a-z]{2} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?) [A-Z]{3,5} ")
_UNIX = re.compile(r"(\d{9,11}\.\d{1,9}) ")
_DECODED = re.compile(r"[a-z0-9]{3,8} *:[a-z]{3,6} *: ")
_LEVEL = re.compile(r"<(\d{1,3})>(?:1 )?")
_HOST = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,254} (?=kernel: |kernel - |\[\d+\] NVRM|\[\d+\] nvidia)"
)
_TAG = re.compile(r"kernel(?:: | - - - |\[\d+\]: )")
_PID = re.compile(r"\[\d+\] ")


class Stripped:
    """text: the kernel's message. Times and numbers are None where the prefix had none."""

    __slots__ = ("injected", "seq", "text", "usec", "when")

    def __init__(self, text):
        self.text = text
        self.when = None  # UNIX seconds, only from a time with a zone (or UNIX time)
        self.usec = None  # microseconds since boot
        self.seq = None
        self.injected = False


def strip(line):
    """One archived line -> Stripped. Takes off what it knows, in the order it can stand there."""
    if "\x1b" in line:
        line = _COLOUR.sub("", line)  # dmesg --color=always
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
    rest = rest[6:] if rest.startswith("[...] ") else rest
    rest = _host(_stamp(rest, found))
    found.text = _kernel_time(rest, found)
    return found


def _stamp(rest, found):
    match = _ISO.match(rest)
    if match:
        if match.group(8):
            found.when = _iso_seconds(match)
        return rest[match.end() :]
    match = _UNIX.match(rest)
    if match:
        found.when = float(match.group(1))
        return rest[match.end() :]
    match = _SYSLOG.match(rest) or _FULL.match(rest) or _CTIME.match(rest)
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
