"""The run at boot: its result for the gate, and one reboot at most."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpu_common import pci

from . import clients, imds, paths
from .errors import REBOOT_NEEDED, MigError, operation_failed
from .settings import Settings

RESULT = paths.RUN_DIR + "/result.json"
# Survives the reboot: which machine requested it. Machines launched from an image of this machine
# may still reboot once.
MARKER = paths.STATE_DIR + "/reboot.json"
# Of this boot: `requested`, or `spent` in the boot after it.
THIS_BOOT = paths.RUN_DIR + "/reboot.json"


def record(state: str, message: str, block_join: bool) -> None:
    """Record `state` (started, ok, nothing, failed, reboot) for kiln-gpu-gate."""
    paths.write_json(RESULT, {"state": state, "message": message, "block_join": block_join})


def reason_no_mig_support(without_mig: Iterable[str]) -> str:
    """The reason why no GPU of this machine supports MIG, from the PCI bus; "" if a GPU may.

    Saves the second that nvidia-smi takes on a machine whose GPUs do not support MIG.
    `without_mig`: PCI device ids of such GPUs. If an id is not among them, or the bus shows no
    NVIDIA GPU (in a container), nvidia-smi must be asked.
    """
    ids = {gpu.device for gpu in pci.nvidia_gpus(pci.devices(paths.at("/sys")))}
    if not ids or not ids <= set(without_mig):
        return ""
    return "no GPU of this machine supports MIG (PCI device {})".format(", ".join(sorted(ids)))


def reason_to_defer_to_operator(settings: Settings) -> str:
    """The reason to leave the layout to the GPU operator; "" when gpu-mig is in charge."""
    if settings.owner == "kiln":
        return ""
    if settings.owner == "operator":
        return "MIG_OWNER=operator"
    return clients.operator_in_charge()


def note_reboot() -> None:
    """Note, at the start of the run at boot, that this is the boot after our reboot.

    The marker ends here, however the run ends: a later boot may be on another host.
    """
    machine = paths.read_json(MARKER).get("machine")
    if machine and not paths.read_json(THIS_BOOT) and machine == imds.machine_id():
        paths.write_json(THIS_BOOT, {"state": "spent"})
        paths.remove(MARKER)


def reboot_once(error: MigError, settings: Settings, say: Callable[[str], None]) -> MigError:
    """Reboot once on this machine; returns the MigError with which to end the run.

    In the boot after it no reboot is requested, whatever the layout is then. A later boot may be on
    another host: there it may be requested again. A unit that is started again by hand, on a
    machine that may be at work, does not reboot it. Raises OSError, and does not reboot, when the
    markers cannot be written.
    """
    if settings.reboot == "never":
        return operation_failed(error.message, "MIG_REBOOT=never: reboot the instance yourself")
    if clients.unit_is("active", "multi-user.target"):
        hint = "reboot the instance; the layout is applied at that boot"
        return operation_failed(error.message, hint)
    state = paths.read_json(THIS_BOOT).get("state")
    if state == "requested":
        return MigError(error.message, "a reboot has already been requested", REBOOT_NEEDED)
    if state == "spent":
        return operation_failed(
            error.message + "; the machine has already been rebooted for this",
            "the mode does not take effect on this host: stop and start the instance. "
            + error.hint,
        )
    paths.write_json(MARKER, {"machine": imds.machine_id()})
    paths.write_json(THIS_BOOT, {"state": "requested"})
    say(f"rebooting once: {error}")
    if not clients.reboot():
        forget_reboot()
        return operation_failed(
            error.message + "; systemd refused to reboot", "reboot the instance yourself"
        )
    return MigError(error.message, "rebooting now", REBOOT_NEEDED)


def forget_reboot() -> None:
    """The goal is reached: a later mode change may reboot again."""
    paths.remove(MARKER)
    paths.remove(THIS_BOOT)
