"""The kernel log: the lines that the bench writes, and the number of all records."""

from __future__ import annotations

import os
import time
from pathlib import Path

EVENT = "NVRM: Xid (PCI:0000:3b:00): 31, pid={n}, Ch {n:08x} {mark}"
STORM = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, Ch {n:08x} {mark}"
OTHER = "usb 1-1: new high-speed USB device number {n} using xhci_hcd {mark}"


class Kernel:
    """Writes lines to the kernel log and to the file that the original parser reads.

    Each line has a descriptor of its own, because the kernel limits the rate per open file.
    """

    def __init__(self, feed: Path | None) -> None:
        self.feed = os.open(feed, os.O_WRONLY | os.O_APPEND) if feed else None

    def say(self, text: str) -> float:
        """Write a line; returns time.monotonic() immediately before."""
        # Without a newline the kernel waits for more text and delays the record until the next one.
        data = text.encode() + b"\n"
        at = time.monotonic()
        fd = os.open("/dev/kmsg", os.O_WRONLY)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
        if self.feed is not None:
            os.write(self.feed, b"[%12.6f] %s" % (at, data))
        return at

    def close(self) -> None:
        if self.feed is not None:
            os.close(self.feed)


def new_mark() -> str:
    """A marker that identifies the lines of a measurement in the kernel log."""
    return f"{time.monotonic_ns() // 1000000 % 10**7:07d}"


class Records:
    """Counts new kernel records, when asked to."""

    def __init__(self) -> None:
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self.fd, 0, os.SEEK_END)
        self.seen = 0

    def count(self) -> None:
        while True:
            try:
                os.read(self.fd, 8192)
            except BrokenPipeError:
                pass  # records were overwritten before they were read
            except BlockingIOError:
                return
            self.seen += 1

    def close(self) -> None:
        os.close(self.fd)
