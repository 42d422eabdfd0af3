"""Applies a layout: a GPU that differs is emptied, its mode set, its instances made, compared.

That is what NVIDIA's mig-parted does. MIG instances never survive a boot, so at boot there is
nothing to keep. After a failure the next `gpu-mig apply` begins anew.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Sequence
from typing import TextIO

from . import boot, clients, modes, paths
from .errors import REBOOT_NEEDED, MigError, operation_failed
from .facts import GpuType
from .plan import Change, changes, creations, destroy_commands, differences, known_types
from .settings import Settings
from .smi import Gpu, Smi, failed
from .target import Wanted, check

_MADE = re.compile(r"created GPU instance ID\s+([0-9]+)\s+on GPU\s+([0-9]+)")


def apply(
    smi: Smi,
    before: Sequence[Gpu],
    wanted: dict[int, Wanted],
    types: dict[str, GpuType],
    settings: Settings,
    say: Callable[[str], None],
    at_boot: bool = False,
) -> tuple[list[int], Sequence[Gpu]]:
    """Apply the layout; returns the GPUs that were changed, and the state afterwards.

    `at_boot`: a refused reset asks for a reboot (exit status 3). Services that this or a killed run
    has stopped are started again.
    """
    try:
        todo = changes(smi, before, wanted, types)
        after = _reach(smi, todo, wanted, types, settings, say, at_boot) if todo else before
    finally:
        clients.start_again(say)
    return [change.gpu for change in todo], after


def _reach(
    smi: Smi,
    todo: list[Change],
    wanted: dict[int, Wanted],
    types: dict[str, GpuType],
    settings: Settings,
    say: Callable[[str], None],
    at_boot: bool,
) -> Sequence[Gpu]:
    try:
        for argv in destroy_commands(todo):
            _destroy(smi, argv, settings, say)
        modes.set_modes(smi, todo, settings.stop_services, say, at_boot)
        now = smi.gpus()
        # The profiles of a GPU that is not in profiles.json can be listed only now.
        for index, kind in known_types(now, wanted, types, smi).items():
            check(wanted[index], kind)
        for gpus, specs, compute in creations(todo):
            _create(smi, gpus, specs, compute)
        after = smi.gpus()
        problems = differences(after, wanted)
        if problems:
            raise operation_failed("the GPUs do not match the layout: " + "; ".join(problems))
    except MigError as error:
        if error.exit_code == REBOOT_NEEDED:
            raise
        touched = ", ".join(str(change.gpu) for change in todo)
        boot.record("failed", error.message, settings.block_join)  # by hand too: the gate closes
        raise operation_failed(
            f"{error.message}; GPU {touched} may have no or some of its instances",
            error.hint or "run gpu-mig apply again, or with the label from before",
        ) from error
    return after


def _destroy(smi: Smi, argv: list[str], settings: Settings, say: Callable[[str], None]) -> None:
    """Run a command that destroys instances; stops listed services if an instance is in use."""
    rc, output = smi.run(*argv)
    if rc and "in use" in output.lower() and clients.stop_listed(settings.stop_services, say):
        rc, output = smi.run(*argv)
    if rc:
        error = failed(argv, rc, output)
        error.hint = clients.advice(smi) if "in use" in output.lower() else ""
        raise error


def _create(smi: Smi, gpus: str, specs: str, compute: str) -> None:
    """Create GPU instances with compute instances of full size, or one cut into `compute`."""
    argv = ["mig", "-i", gpus, "-cgi", specs]
    if not compute:
        smi.must(*argv, "-C")
        return
    output = smi.must(*argv)
    made = _MADE.search(output)
    if not made:
        raise operation_failed(f"nvidia-smi reported no id of the GPU instance: {output[:200]!r}")
    smi.must("mig", "-i", gpus, "-gi", made.group(1), "-cci", compute)


def lock() -> TextIO:
    """Lock out other gpu-mig processes until the file is closed. Raises MigError when one runs."""
    os.makedirs(paths.at(paths.RUN_DIR), exist_ok=True)
    handle = open(paths.at(paths.RUN_DIR + "/lock"), "w")  # noqa: SIM115 - the caller closes it
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        raise operation_failed(
            "another gpu-mig is changing the GPUs", "wait until it has ended"
        ) from e
    return handle
