"""What the lab asks of the host's kernel."""

from __future__ import annotations

from pathlib import Path

# A guest's systemd takes about 20 inotify instances; the kernel's default of 128 per user, shared
# by all guests, ends with the sixth: boots then stop halfway without a word.
_LIMITS = {
    "fs/inotify/max_user_instances": 8192,
    "fs/inotify/max_user_watches": 1048576,
    "net/ipv4/ip_forward": 1,
}


def prepare() -> None:
    """Raise the limits that several guests at once need; never lower one."""
    for name, least in _LIMITS.items():
        path = Path("/proc/sys") / name
        if int(path.read_text()) < least:
            path.write_text(str(least))
