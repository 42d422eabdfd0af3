"""Turns MIG mode on and off, with a GPU reset where the architecture needs one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import clients
from .errors import REBOOT_NEEDED, MigError, StoppedError, operation_failed
from .plan import Change, mode_groups
from .smi import Smi, last

_IN_USE = ("in use by another client", "currently being used", "is in use", "being used by")
_NO_RESET = ("not supported",)


def set_modes(
    smi: Smi,
    todo: list[Change],
    services: Sequence[str],
    say: Callable[[str], None],
    at_boot: bool = False,
) -> None:
    """Sets the mode of every GPU that needs it and verifies that it is in effect.

    On Ampere a new mode takes effect at a GPU reset, on Hopper and later at once. If a GPU is in
    use, `services` are stopped and the change is tried again. Raises MigError with the remaining
    clients, or with exit status 3 when a reboot is needed: this VM cannot reset its GPU, or the
    run `at_boot` was refused a reset for any other reason.
    """
    try:
        _set_modes(smi, todo, services, say)
    except StoppedError:
        raise
    except MigError as e:
        # The mode of a GPU that is reset is kept by the card: a reboot makes it effective.
        if at_boot and any(p.reset is not False for p in todo if p.mode is not None):
            raise MigError(e.message, e.hint, REBOOT_NEEDED) from e
        raise


def _set_modes(
    smi: Smi, todo: list[Change], services: Sequence[str], say: Callable[[str], None]
) -> None:
    aims = {p.gpu: p.mode for p in todo if p.mode is not None}
    if not aims:
        return
    if all(p.reset is False for p in todo if p.mode is not None):
        # The driver keeps the mode there, so nvidia-persistenced must keep the driver loaded.
        services = [s for s in services if not clients.is_persistenced(s)]
    output = _switch(smi, todo, say)
    left = _not_effective(smi, aims)
    if left and _mentions(output, _IN_USE) and clients.stop_listed(services, say):
        output = _switch(smi, [p for p in todo if p.gpu in left], say)
        left = _not_effective(smi, aims)
    needs_reset = any(p.reset is not False for p in todo if p.gpu in left)
    if left and (needs_reset or not _mentions(output, _IN_USE)):
        # nvidia-smi asks persistenced and fabric manager to let go of the GPU for this reset.
        output = _reset(smi, left, services, say)
        left = _not_effective(smi, aims)
    if left:
        raise _mode_error(smi, ", ".join(str(g) for g in left), output)
    clients.restart_persistenced(say)


def _mode_error(smi: Smi, gpus: str, output: str) -> MigError:
    if _mentions(output, _IN_USE):
        return operation_failed(f"GPU {gpus} is in use by another client", clients.advice(smi))
    if _mentions(output, _NO_RESET):
        return MigError(
            f"GPU {gpus}: the new MIG mode waits for a reboot: this VM cannot reset its GPU",
            "reboot the instance; the layout is applied at that boot",
            REBOOT_NEEDED,
        )
    return operation_failed(
        f"GPU {gpus}: MIG mode did not change: {last(output)}",
        "on Hopper and later the mode is lost when the driver unloads: run nvidia-persistenced",
    )


def _switch(smi: Smi, todo: list[Change], say: Callable[[str], None]) -> str:
    output = ""
    for mode, gpus in mode_groups(todo):
        rc, text = smi.run("-i", gpus, "-mig", "1" if mode else "0")
        if rc and not _mentions(text, (*_IN_USE, *_NO_RESET)):
            # What follows, such as a refused reset, would hide it.
            say(f"nvidia-smi did not change the MIG mode of GPU {gpus}: status {rc}: {last(text)}")
        output += text
    return output


def _reset(smi: Smi, left: list[int], services: Sequence[str], say: Callable[[str], None]) -> str:
    gpus = ",".join(str(g) for g in left)
    rc, output = smi.run("--gpu-reset", "-i", gpus)
    if rc and _mentions(output, _IN_USE) and clients.stop_listed(services, say):
        output = smi.run("--gpu-reset", "-i", gpus)[1]
    return output


def _not_effective(smi: Smi, aims: dict[int, bool]) -> list[int]:
    now = {g.index: (g.current, g.pending) for g in smi.gpus(instances=False)}
    return [i for i, mode in aims.items() if now.get(i) != (mode, mode)]


def _mentions(text: str, phrases: Sequence[str]) -> bool:
    return any(phrase in text.lower() for phrase in phrases)
