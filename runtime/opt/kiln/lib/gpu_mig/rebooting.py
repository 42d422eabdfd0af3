"""Reboots once when a mode change needs it, and never in the boot that follows."""

from __future__ import annotations

from collections.abc import Callable

from . import clients, imds, paths
from .errors import REBOOT_NEEDED, MigError, operation_failed
from .settings import Settings

MARKER = paths.STATE_DIR + "/reboot.json"


def boot_id() -> str:
    """The id of this boot, from the kernel; "" when it cannot be read."""
    return paths.read("/proc/sys/kernel/random/boot_id").strip()


def for_mode(error: MigError, settings: Settings, say: Callable[[str], None]) -> MigError:
    """Reboots once on this machine; returns the MigError with which to end the run.

    The marker says in which boot (`boot`) of which machine the reboot was requested, so that
    machines launched from an image of this machine can still reboot once. It is valid for one more
    boot (`after`), in which no reboot is requested, whatever the layout is: a later boot may be on
    another host.
    """
    if settings.reboot == "never":
        return operation_failed(error.message, "MIG_REBOOT=never: reboot the instance yourself.")
    machine, now, marker = imds.machine_id(), boot_id(), paths.read_json(MARKER)
    if not now:
        return operation_failed(
            error.message + "; no reboot, because the kernel's boot id cannot be read",
            "reboot the instance yourself.",
        )
    if marker.get("machine") == machine:
        if marker.get("boot") == now:
            return MigError(error.message, "a reboot has already been requested.", REBOOT_NEEDED)
        if marker.get("after", now) == now:
            paths.write_json(MARKER, dict(marker, after=now))
            return operation_failed(
                error.message + "; the machine has already been rebooted for this",
                "the mode does not take effect on this host: stop and start the instance. "
                + error.hint,
            )
    paths.write_json(MARKER, {"machine": machine, "boot": now})
    say(f"rebooting once: {error}")
    if not clients.reboot():
        done()
        return operation_failed(
            error.message + "; systemd refused to reboot", "reboot the instance yourself."
        )
    return MigError(error.message, "rebooting now.", REBOOT_NEEDED)


def done() -> None:
    """The goal is reached: a later mode change may reboot again."""
    paths.remove(MARKER)
