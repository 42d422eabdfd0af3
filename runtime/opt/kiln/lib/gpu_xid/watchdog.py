"""What systemd is told: a line for the journal, ready, reloading, and when to watch over us.

A timer that feeds the watchdog would wake the machine for nothing. So the watchdog is armed
before work and disarmed after it (`WATCHDOG_USEC=`, systemd >= 233): a process asleep in poll()
cannot hang, one that handles events can. systemd 219 cannot be told; there
(`GPU_XID_WATCHDOG=timer`) it is fed by a timer after all.
"""

import os

from .lean import Notify


def say(level, text):
    """One line to the journal. level: 3 error, 4 warning, 6 info."""
    try:
        os.write(2, ("<%d>gpu-xid: %s\n" % (level, text)).encode("utf-8", "replace"))
    except OSError:
        pass


class Watchdog:
    def __init__(self, environ=os.environ):
        self.notify = Notify(environ)
        self.limit_us = int(environ.get("WATCHDOG_USEC", "0") or 0)
        self.by_timer = environ.get("GPU_XID_WATCHDOG") == "timer"
        self.armed = True  # systemd arms it when we say READY

    def say(self, message):
        """READY=1 and the like. READY arms the watchdog anew."""
        self.notify.send(message)
        self.armed = True

    def arm(self):
        """Work begins."""
        if self.limit_us and not self.armed and not self.by_timer:
            self.armed = self.notify.send("WATCHDOG_USEC=%d\nWATCHDOG=1" % self.limit_us)

    def disarm(self):
        """Sleep begins. What could not be sent is sent again at the next `wake_in`."""
        if not self.limit_us:
            return
        if self.by_timer:
            self.notify.send("WATCHDOG=1")
        elif self.armed:
            self.armed = not self.notify.send("WATCHDOG_USEC=0")

    def wake_in(self):
        """Seconds after which `disarm` has to be called again, or None."""
        if self.limit_us and (self.by_timer or self.armed):
            return self.limit_us / 2000000.0
        return None
