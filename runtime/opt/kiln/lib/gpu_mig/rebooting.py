"""One reboot when a mode change needs one, and never a second for the same reason."""

from __future__ import annotations

from . import clients, imds, paths
from .errors import REBOOT_NEEDED, MigError, world_failed

MARKER = paths.STATE_DIR + "/reboot.json"


def boot_id():
    """The kernel's id of this boot."""
    return paths.read("/proc/sys/kernel/random/boot_id").strip()


def for_mode(error: MigError, goal: str, settings, say) -> MigError:
    """Reboots once for this goal on this machine; the MigError to end the run with.

    The marker holds the machine's id: an image made of a machine that waited for its reboot
    does not take the reboot away from the machines launched of it.
    """
    if settings.reboot == "never":
        return world_failed(error.message, "MIG_REBOOT=never: reboot the instance yourself.")
    marker = paths.read_json(MARKER)
    mine = {"machine": imds.machine_id(), "goal": goal}
    if {k: marker.get(k) for k in mine} == mine:
        if marker.get("boot") == boot_id():
            return MigError(error.message, "a reboot was asked for already.", REBOOT_NEEDED)
        return world_failed(
            error.message + "; it was rebooted for this once already",
            "the mode does not take effect on this host: stop and start the instance.",
        )
    paths.write_json(MARKER, dict(mine, boot=boot_id()))
    say("rebooting once: {}".format(error.message))
    clients.reboot()
    return MigError(error.message, "rebooting now.", REBOOT_NEEDED)


def done() -> None:
    """The goal is reached: a later need may reboot again."""
    paths.remove(MARKER)
