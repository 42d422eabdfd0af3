"""The kernel log as the bench uses it: the lines it writes there, and how many others write."""

from __future__ import annotations

import os
import time
from pathlib import Path

EVENT = "NVRM: Xid (PCI:0000:3b:00): 31, pid={n}, Ch {n:08x} {mark}"
STORM = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, Ch {n:08x} {mark}"
OTHER = "usb 1-1: new high-speed USB device number {n} using xhci_hcd {mark}"


class Kernel:
    """Writes lines to the kernel log (a new descriptor each, as the kernel rate-limits per open
    file) and to the file that the original reads."""

    def __init__(self, feed: Path | None) -> None:
        self.feed = os.open(feed, os.O_WRONLY | os.O_APPEND) if feed else None

    def say(self, text: str) -> float:
        """Write one line; returns time.monotonic() just before."""
        # Without a newline the kernel keeps a record open for more, unreadable until the next one.
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
    """What tells the lines of one measurement from all others in the kernel log."""
    return f"{time.monotonic_ns() // 1000000 % 10**7:07d}"


class Records:
    """Counts kernel records as they come; nobody is woken for it."""

    def __init__(self) -> None:
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self.fd, 0, os.SEEK_END)
        self.seen = 0

    def count(self) -> None:
        while True:
            try:
                os.read(self.fd, 8192)
            except BrokenPipeError:
                pass  # overwritten unread: there were some
            except BlockingIOError:
                return
            self.seen += 1

    def close(self) -> None:
        os.close(self.fd)
