"""Turns MIG mode on and off, with whatever the architecture asks for to make it effective."""

from __future__ import annotations

from typing import List

from . import clients
from .errors import REBOOT_NEEDED, MigError, world_failed
from .plan import GpuPlan, same_work

_IN_USE = ("in use by another client", "currently being used", "is in use", "being used by")
_NO_RESET = ("not supported",)


def set_modes(smi, plans: List[GpuPlan], services, say) -> None:
    """Sets the mode of every GPU that needs it and makes sure it is in effect.

    Ampere takes a new mode at a GPU reset, Hopper and later at once. A GPU that is in use: the
    `services` among its clients are stopped and it is tried once more. Raises MigError naming the
    clients that remain, or with exit code 3 when the reset is not supported in this VM.
    """
    aims = {p.gpu: p.mode for p in plans if p.mode is not None}
    if not aims:
        return
    if all(p.reset is False for p in plans if p.mode is not None):
        # There the mode is the driver's: without its keeper it would unload and forget the mode.
        services = [s for s in services if not clients.keeps_driver(s)]
    said = _switch(smi, plans)
    left = _not_effective(smi, aims)
    if left and _says(said, _IN_USE) and clients.stop_listed(services, say):
        said = _switch(smi, [p for p in plans if p.gpu in left])
        left = _not_effective(smi, aims)
    if left and not _says(said, _IN_USE):
        said = _reset(smi, left, services, say)
        left = _not_effective(smi, aims)
    if left:
        raise _why_not(smi, ", ".join(str(g) for g in left), said)
    clients.start_driver_keeper(say)


def _why_not(smi, gpus, said):
    if _says(said, _IN_USE):
        return world_failed("GPU {} is in use by another client".format(gpus), clients.advice(smi))
    if _says(said, _NO_RESET):
        return MigError(
            "GPU {}: the new MIG mode waits for a reboot: this VM cannot reset its GPU".format(
                gpus
            ),
            "reboot the instance; the slices are made at that boot.",
            REBOOT_NEEDED,
        )
    return world_failed(
        "GPU {}: MIG mode did not change: {}".format(gpus, _last(said)),
        "on Hopper and later a driver that unloads forgets it: nvidia-persistenced must run.",
    )


def _switch(smi, plans):
    said = ""
    for mode, gpus in same_work(plans, lambda p: p.mode):
        said += smi.run("-i", gpus, "-mig", "1" if mode else "0")[1]
    return said


def _reset(smi, left, services, say):
    gpus = ",".join(str(g) for g in left)
    rc, said = smi.run("--gpu-reset", "-i", gpus)
    if rc and _says(said, _IN_USE) and clients.stop_listed(services, say):
        said = smi.run("--gpu-reset", "-i", gpus)[1]
    return said


def _not_effective(smi, aims):
    now = {g.index: g for g in smi.gpus(instances=False)}
    return [i for i, mode in aims.items() if now[i].current != mode or now[i].pending != mode]


def _says(text, phrases):
    return any(phrase in text.lower() for phrase in phrases)


def _last(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-2:]) or "nvidia-smi said nothing"
