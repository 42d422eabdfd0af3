"""The event log read back for people: with its rotated files, in both formats, and as far as it
is one: hands, crashes and full disks leave all sorts of lines."""

import json
import os

from . import stream
from .catalogue import Catalogue

_TEXTS = ("time", "event")
_KERNEL = (b"NVRM: ", b"nvidia-nvswitch")


def files(path):
    """The log's open files, newest first. Raises OSError when there is none at `path`.

    Opened in this order, so that a rotation meanwhile hides none: it moves them to later numbers.
    """
    found = [open(path, "rb")]
    known = {_identity(found[0])}
    real = os.path.realpath(path)
    folder, name = os.path.split(real + ".")
    numbers = [one[len(name) :] for one in os.listdir(folder) if one.startswith(name)]
    for number in sorted(int(text) for text in numbers if text.isdigit() and text.isascii()):
        try:
            file = open("%s.%d" % (real, number), "rb")
        except OSError:
            continue
        if _identity(file) in known:  # in the middle of a rotation one file has two names
            file.close()
            continue
        known.add(_identity(file))
        found.append(file)
    return found


def _identity(file):
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino


def rows(lines):
    """Yield a dict for each line (bytes) that is one of the monitor's.

    `time` and `event` are texts, `count` and `lost` numbers where they are there. A line of
    `--format raw` has what the kernel says, and its seconds since boot for a time.
    """
    catalogue = Catalogue()
    for text in lines:
        line = text.lstrip(b"\0")  # what a crash can leave in a file's last block
        if line.startswith(b"{"):
            row = _json(line)
            if row is not None:
                yield row
        elif any(word in line for word in _KERNEL):
            for row in stream.events([line], catalogue):
                usec = row["monotonic_us"]
                row["time"] = "unknown time" if usec is None else "[%12.6f]" % (usec / 1000000.0)
                yield row


def _json(line):
    try:
        row = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in _TEXTS):
        return None
    for key in ("count", "lost"):
        if not _number(row.get(key)):
            row.pop(key, None)
    return row


def is_gpu_event(row):
    """Has it all that an Xid or SXid is shown with?"""
    return (
        row["event"] in ("xid", "sxid")
        and _number(row.get(row["event"]))
        and isinstance(row.get("pci"), str)
        and isinstance(row.get("severity"), str)
        and isinstance(row.get("name"), (str, type(None)))
        and (row.get("gpu") is None or _number(row["gpu"]))
    )


def _number(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def printable(text):
    """What a process name or a message holds must not steer the terminal it is shown on."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\\x%02x" % ord(c) for c in text)
