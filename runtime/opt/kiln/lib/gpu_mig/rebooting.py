"""Reboots once when a mode change needs it, and never twice for the same reason."""

from __future__ import annotations

from collections.abc import Callable

from . import clients, imds, paths
from .errors import REBOOT_NEEDED, MigError, operation_failed
from .settings import Settings

MARKER = paths.STATE_DIR + "/reboot.json"


def boot_id() -> str:
    """The id of this boot, from the kernel."""
    return paths.read("/proc/sys/kernel/random/boot_id").strip()


def for_mode(
    error: MigError, goal: str, settings: Settings, say: Callable[[str], None]
) -> MigError:
    """Reboots once for this goal on this machine; returns the MigError with which to end the run.

    The marker holds the machine id, so that machines launched from an image of this machine can
    still reboot once.
    """
    if settings.reboot == "never":
        return operation_failed(error.message, "MIG_REBOOT=never: reboot the instance yourself.")
    marker = paths.read_json(MARKER)
    request = {"machine": imds.machine_id(), "goal": goal}
    if {k: marker.get(k) for k in request} == request:
        if marker.get("boot") == boot_id():
            return MigError(error.message, "a reboot has already been requested.", REBOOT_NEEDED)
        return operation_failed(
            error.message + "; the machine has already been rebooted for this",
            "the mode does not take effect on this host: stop and start the instance.",
        )
    paths.write_json(MARKER, dict(request, boot=boot_id()))
    say(f"rebooting once: {error.message}")
    clients.reboot()
    return MigError(error.message, "rebooting now.", REBOOT_NEEDED)


def done() -> None:
    """The goal is reached: a later mode change may reboot again."""
    paths.remove(MARKER)
