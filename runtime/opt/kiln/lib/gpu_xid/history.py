"""Reads the event log back, with its rotated files, in both formats.

Lines that are not events (edits by hand, crashes and full disks leave them) are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from . import event
from .catalogue import Catalogue
from .parse import set_message_starts
from .pipeline import messages

_TEXTS = ("time", "event")


def files(path: str) -> list[BinaryIO]:
    """The open files of the log, newest first. Raises OSError when `path` cannot be opened.

    A rotation in the meantime moves files to higher numbers, so opening them in this order finds
    each of them.
    """
    opened: list[BinaryIO] = [open(path, "rb")]  # noqa: SIM115 - the caller closes the files
    known = {_identity(opened[0])}
    real = os.path.realpath(path)
    folder, name = os.path.split(real + ".")
    numbers = [entry[len(name) :] for entry in os.listdir(folder) if entry.startswith(name)]
    for number in sorted(int(text) for text in numbers if text.isdigit() and text.isascii()):
        try:
            file = open(f"{real}.{number}", "rb")  # noqa: SIM115
        except OSError:
            continue
        if _identity(file) in known:  # during a rotation a file has two names
            file.close()
            continue
        known.add(_identity(file))
        opened.append(file)
    return opened


def _identity(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino


def rows(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield a dict for each line (bytes) that the monitor wrote.

    `time` and `event` are strings; `count` and `lost`, where present, are whole numbers. For a line
    of `--format raw`, `time` is the kernel's seconds since boot.
    """
    catalogue = Catalogue()
    set_message_starts(catalogue.entry("message starts") or ())
    for text in lines:
        line = text.lstrip(b"\0")  # a crash can leave NULs in the last block of a file
        if line.startswith(b"{"):
            row = _json(line)
            if row is not None:
                yield row
        elif line.startswith(b"["):
            time, _, kernel_line = line.decode("utf-8", "replace").rstrip("\n").partition("] ")
            for fields in messages(kernel_line):
                if fields["kind"] in ("xid", "sxid"):
                    row = event.gpu_event(catalogue.classify(fields), 0, None, None, None)
                    yield dict(row, time=time + "]")


def _json(line: bytes) -> dict[str, Any] | None:
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


def is_gpu_event(row: dict[str, Any]) -> bool:
    """Whether this is an Xid or SXid with valid values for every key that is shown."""
    return (
        row["event"] in ("xid", "sxid")
        and _number(row.get(row["event"]))
        and isinstance(row.get("pci"), str)
        and isinstance(row.get("severity"), str)
        and isinstance(row.get("name"), (str, type(None)))
        and (row.get("gpu") is None or _number(row["gpu"]))
    )


def as_xid(row: dict[str, Any]) -> dict[str, Any]:
    """A GPU that was lost without an Xid, as the Xid for a lost GPU; other rows unchanged."""
    if row["event"] != "gpu-lost":
        return row
    return dict(row, event="xid", xid=row.get("implied_xid"))


def _number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def printable(text: str) -> str:
    """The text with escapes for control characters, which must not reach the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
