"""The time in a log line, found and read by timestamp_format.

github:aws/amazon-cloudwatch-agent internal/util/timestamp/timestamp.go and
plugins/inputs/logfile/fileconfig.go @ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
"""

from __future__ import annotations

import calendar
import datetime
import re
import time

_CODES = {
    "%B": r"\w{7}",
    "%b": r"\w{3}",
    "%-m": r"\s{0,1}\d{1,2}",
    "%m": r"\s{0,1}\d{1,2}",
    "%A": r"\w{6,9}",
    "%a": r"\w{3}",
    "%-d": r"\s{0,1}\d{1,2}",
    "%d": r"\s{0,1}\d{1,2}",
    "%H": r"\d{2}",
    "%-I": r"\d{1,2}",
    "%I": r"\d{2}",
    "%-M": r"\d{1,2}",
    "%M": r"\d{2}",
    "%-S": r"\d{1,2}",
    "%S": r"\d{2}",
    "%Y": r"\d{4}",
    "%y": r"\d{2}",
    "%p": r"\w{2}",
    "%Z": r"\w{3}",
    "%z": r"[+-]\d{4}",
    "%f": r"(\d{1,9})",
}
_ESCAPED = "^.*?+|[](){}$"
_CODE = re.compile(r"%-?[A-Za-z]")


class Clock:
    """Reads the time of lines in one format."""

    def __init__(self, layout: str, utc: bool) -> None:
        self.layout, self.utc = layout, utc
        text = "".join("\\" + c if c in _ESCAPED else c for c in layout)
        pattern = _CODE.sub(lambda code: _CODES.get(code[0], code[0]), text)
        if pattern.startswith(r"\s{0,1}"):
            pattern = pattern[len(r"\s{0,1}") :]
        self.pattern = re.compile("(" + pattern + ")")

    def read(self, line: str) -> tuple[float | None, tuple[int, int] | None]:
        """Seconds since 1970 and the matched span; (None, None) when the line has no time."""
        match = self.pattern.search(line)
        if not match:
            return None, None
        text, layout = match[1], self.layout.replace("%-", "%")
        fraction = 0.0
        if "%f" in layout and match.re.groups > 1:
            start, end = match.start(2) - match.start(1), match.end(2) - match.start(1)
            fraction = float("0." + (match[2] + "000")[:3])
            text, layout = text[:start] + text[end:], layout.replace("%f", "")
        try:
            parsed = datetime.datetime.strptime(text.strip(), layout.strip())
        except ValueError:
            return None, None
        if "%Y" not in layout and "%y" not in layout:
            parsed = _this_year(parsed)
        return self._seconds(parsed) + fraction, match.span()

    def _seconds(self, parsed: datetime.datetime) -> float:
        if parsed.tzinfo:
            return parsed.timestamp()
        if self.utc:
            return float(calendar.timegm(parsed.timetuple()))
        return time.mktime(parsed.timetuple())


def _this_year(parsed: datetime.datetime) -> datetime.datetime:
    now = datetime.datetime.now()
    parsed = parsed.replace(year=now.year)
    # A line of December that is read in January.
    return parsed.replace(year=now.year - 1) if (parsed - now).days > 30 else parsed
