"""Messages to systemd: journal lines, ready, reloading, and the watchdog.

Feeding the watchdog by a timer would wake the machine for nothing. The watchdog is therefore armed
before work and disarmed after it (`WATCHDOG_USEC=`, systemd >= 233): a process asleep in poll()
cannot hang, a process that handles events can. systemd 219 does not support that; there a timer
feeds it (`GPU_XID_WATCHDOG=timer`).
"""

from __future__ import annotations

import contextlib
import os
import socket

TYPE_CHECKING = False  # the module typing would cost the daemon 0.7 MiB
if TYPE_CHECKING:
    from collections.abc import Mapping


def say(level: int, text: str) -> None:
    """Write a line to the journal. level: 3 error, 4 warning, 6 info."""
    with contextlib.suppress(OSError):
        os.write(2, (f"<{level}>gpu-xid: {text}\n").encode("utf-8", "replace"))


class Notify:
    """sd_notify(3). Does nothing when systemd did not start this process."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self.address = "\0" + path[1:] if path.startswith("@") else path
        self.socket: socket.socket | None = None
        if self.address:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.socket.setblocking(False)

    def send(self, message: str) -> bool:
        """True when systemd has taken the message, or when there is no systemd to take it."""
        if self.socket is None:
            return True
        try:
            self.socket.sendto(message.encode(), self.address)
        except OSError:
            return False
        return True


class Watchdog:
    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.notify = Notify(environ)
        self.limit_us = int(environ.get("WATCHDOG_USEC", "0") or 0)
        self.by_timer = environ.get("GPU_XID_WATCHDOG") == "timer"
        self.armed = True  # READY arms it

    def say(self, message: str) -> None:
        """Send READY=1, RELOADING=1 or STOPPING=1. READY arms the watchdog again."""
        self.notify.send(message)
        self.armed = True

    def arm(self) -> None:
        """Call before work."""
        if self.limit_us and not self.armed and not self.by_timer:
            self.armed = self.notify.send(f"WATCHDOG_USEC={self.limit_us}\nWATCHDOG=1")

    def disarm(self) -> None:
        """Call before sleeping. A message that could not be sent is sent again after `wake_in`."""
        if not self.limit_us:
            return
        if self.by_timer:
            self.notify.send("WATCHDOG=1")
        elif self.armed:
            self.armed = not self.notify.send("WATCHDOG_USEC=0")

    def wake_in(self) -> float | None:
        """Seconds after which `disarm` must be called again, or None."""
        if self.limit_us and (self.by_timer or self.armed):
            return self.limit_us / 2000000.0
        return None
