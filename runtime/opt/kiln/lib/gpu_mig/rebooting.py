"""Reboots once when a mode change needs it, and never in the boot that follows."""

from __future__ import annotations

from collections.abc import Callable

from . import clients, imds, paths
from .errors import REBOOT_NEEDED, MigError, operation_failed
from .settings import Settings

# Survives the reboot: which machine requested it. Machines launched from an image of this machine
# may still reboot once.
MARKER = paths.STATE_DIR + "/reboot.json"
# Of this boot: `requested`, or `spent` in the boot after it.
THIS_BOOT = paths.RUN_DIR + "/reboot.json"


def for_mode(error: MigError, settings: Settings, say: Callable[[str], None]) -> MigError:
    """Reboots once on this machine; returns the MigError with which to end the run.

    In the boot after it no reboot is requested, whatever the layout is then. A later boot may be on
    another host: there it may be requested again. Raises OSError, and does not reboot, when the
    markers cannot be written.
    """
    if settings.reboot == "never":
        return operation_failed(error.message, "MIG_REBOOT=never: reboot the instance yourself")
    state = paths.read_json(THIS_BOOT).get("state")
    if state == "requested":
        return MigError(error.message, "a reboot has already been requested", REBOOT_NEEDED)
    machine = imds.machine_id()
    if state == "spent" or paths.read_json(MARKER).get("machine") == machine:
        paths.write_json(THIS_BOOT, {"state": "spent"})
        paths.remove(MARKER)
        return operation_failed(
            error.message + "; the machine has already been rebooted for this",
            "the mode does not take effect on this host: stop and start the instance. "
            + error.hint,
        )
    paths.write_json(MARKER, {"machine": machine})
    paths.write_json(THIS_BOOT, {"state": "requested"})
    say(f"rebooting once: {error}")
    if not clients.reboot():
        done()
        return operation_failed(
            error.message + "; systemd refused to reboot", "reboot the instance yourself"
        )
    return MigError(error.message, "rebooting now", REBOOT_NEEDED)


def done() -> None:
    """The goal is reached: a later mode change may reboot again."""
    paths.remove(MARKER)
    paths.remove(THIS_BOOT)
