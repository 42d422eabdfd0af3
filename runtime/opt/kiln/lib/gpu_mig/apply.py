"""Applies a layout to every GPU; after a failure, restores the former layout or none."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TextIO

from . import clients, glance, modes, paths
from .errors import REBOOT_NEEDED, MigError, StoppedError, operation_failed
from .facts import GpuType, by_device_id
from .plan import Creation, GpuPlan, creations, destroy_commands, plan
from .profile import parse
from .settings import Settings
from .smi import Gpu, Smi, failed
from .target import Shape, Wanted, check, counted, devices_of, shape_order

PARTED = "nvidia-mig-parted"
_MADE = re.compile(r"created GPU instance ID\s+([0-9]+)\s+on GPU\s+([0-9]+)")


class Outcome(NamedTuple):
    """`changed`: GPUs that were changed; `gpus`: the state afterwards."""

    changed: tuple[int, ...]
    gpus: tuple[Gpu, ...]


def known_types(
    gpus: Sequence[Gpu], wanted: dict[int, Wanted], types: dict[str, GpuType], smi: Smi
) -> dict[int, GpuType | None]:
    """The type of every addressed GPU, by index; None where MIG mode must be turned on to know it.

    A driver lists the profiles of a GPU only while MIG mode is on. It is asked about GPUs that
    profiles.json does not know, and about profiles whose size depends on firmware.
    """
    kinds = {}
    for gpu in gpus:
        if gpu.index not in wanted:
            continue
        kind = by_device_id(types, gpu.device_id)
        names = [profile for profile, _ in wanted[gpu.index].shapes]
        unknown = [n for n in names if kind is None or n not in kind.profiles]
        if unknown and gpu.current:
            kind = smi.gpu_type(gpu, kind)
        elif unknown and kind and all(_resized(n, kind) for n in unknown):
            kind = None
        kinds[gpu.index] = kind
    return kinds


def _resized(name: str, kind: GpuType) -> bool:
    """Whether `kind` has this profile in a similar size: GB200 has 3g.93gb or 3g.95gb."""
    asked = parse(name)
    return any(
        p._replace(gb=asked.gb) == asked and abs(p.gb - asked.gb) * 20 <= asked.gb
        for p in map(parse, kind.profiles)
    )


def checked_plan(
    smi: Smi, gpus: Sequence[Gpu], wanted: dict[int, Wanted], types: dict[str, GpuType]
) -> list[GpuPlan]:
    """A plan that fits the GPUs. Raises MigError, before any change, when none fits."""
    kinds = known_types(gpus, wanted, types, smi)
    for index, kind in kinds.items():
        check(wanted[index], kind)
    return plan(gpus, wanted, kinds)


def apply(
    smi: Smi,
    before: Sequence[Gpu],
    wanted: dict[int, Wanted],
    types: dict[str, GpuType],
    settings: Settings,
    say: Callable[[str], None],
    at_boot: bool = False,
) -> Outcome:
    """Applies the layout. Raises MigError, which says whether the former layout was restored.

    `at_boot`: a refused reset asks for a reboot (exit status 3), and nothing is restored.
    When the state already matches, nothing is done and `changed` is empty.
    """
    plans = checked_plan(smi, before, wanted, types)
    todo = [p for p in plans if not p.nothing]
    if not todo:
        return nothing_to_do(before, say)
    try:
        after = _reach(smi, before, wanted, types, settings, say, at_boot)
    except MigError as error:
        if error.exit_code == REBOOT_NEEDED:
            raise
        raise _roll_back(smi, before, [p.gpu for p in todo], types, settings, say, error) from error
    finally:
        clients.start_again(say)
    return Outcome(tuple(p.gpu for p in todo), tuple(after))


def nothing_to_do(gpus: Sequence[Gpu], say: Callable[[str], None]) -> Outcome:
    """The outcome without changes. Services that a killed run left stopped are started again."""
    clients.start_again(say)
    return Outcome((), tuple(gpus))


def _reach(
    smi: Smi,
    before: Sequence[Gpu],
    wanted: dict[int, Wanted],
    types: dict[str, GpuType],
    settings: Settings,
    say: Callable[[str], None],
    at_boot: bool = False,
) -> Sequence[Gpu]:
    kinds = known_types(before, wanted, types, smi)
    plans = plan(before, wanted, kinds)
    for argv in destroy_commands(plans):
        _run(smi, argv, settings, say)
    modes.set_modes(smi, plans, settings.stop_services, say, at_boot)
    if any(p.mode and p.create and kinds[p.gpu] is None for p in plans):
        # The profiles of a GPU that is not in profiles.json can be listed only now.
        plans = checked_plan(smi, smi.gpus(), wanted, types)
    if _use_parted(settings):
        # mig-parted empties a GPU first. Where instances stay, nvidia-smi creates the others.
        _parted(smi, [wanted[p.gpu] for p in plans if p.create and not p.keep])
        plans = [p for p in plans if p.keep]
    _create_all(smi, plans, wanted, types, settings, say)
    after = _now(smi, wanted, types)
    problems = differences(after, wanted)
    if problems:
        raise operation_failed("the GPUs do not match the layout: " + "; ".join(problems))
    return after


def _now(smi: Smi, wanted: dict[int, Wanted], types: dict[str, GpuType]) -> Sequence[Gpu]:
    """Every GPU with its instances: one query if it proves the match, else three."""
    views = glance.look(smi)
    if views is None:
        return smi.gpus()
    return glance.as_wanted(views, wanted, types) or smi.listed([view.gpu for view in views])


def _run(smi: Smi, argv: list[str], settings: Settings, say: Callable[[str], None]) -> None:
    """Runs a command that destroys instances; stops listed services if an instance is in use."""
    rc, output = smi.run(*argv)
    if rc and "in use" in output.lower() and clients.stop_listed(settings.stop_services, say):
        rc, output = smi.run(*argv)
    if rc:
        error = failed(argv, rc, output)
        error.hint = clients.advice(smi) if "in use" in output.lower() else ""
        raise error


def _create_all(
    smi: Smi,
    plans: list[GpuPlan],
    wanted: dict[int, Wanted],
    types: dict[str, GpuType],
    settings: Settings,
    say: Callable[[str], None],
) -> None:
    """Creates the missing instances.

    If the driver refuses, starts again from empty GPUs: first with positions chosen by the
    driver, then with ours.
    """
    for placed in (False, True):
        try:
            _create_each(smi, plans)
            return
        except StoppedError:
            raise
        except MigError as error:
            say(f"{error.message}; trying again from empty GPUs")
        now = smi.gpus()
        kinds = known_types(now, wanted, types, smi)
        plans = plan(now, wanted, kinds, anew=True, placed=placed)
        for argv in destroy_commands(plans):
            _run(smi, argv, settings, say)
    _create_each(smi, plans)


def _create_each(smi: Smi, plans: list[GpuPlan]) -> None:
    for gpus, creation in creations(plans):
        _create(smi, gpus, creation)


def _create(smi: Smi, gpus: str, creation: Creation) -> None:
    argv = ["mig", "-i", gpus, "-cgi", creation.specs] + (["-C"] if creation.one_step else [])
    output = smi.must(*argv)
    if creation.one_step:
        return
    made = _MADE.search(output)
    if not made:
        raise operation_failed(
            f"nvidia-smi did not report the id of the new GPU instance: {output[:200]!r}"
        )
    smi.must("mig", "-i", gpus, "-gi", made.group(1), "-cci", creation.compute)


def _use_parted(settings: Settings) -> bool:
    installed = paths.program(PARTED) != ""
    if settings.engine == "mig-parted" and not installed:
        raise operation_failed(f"MIG_ENGINE=mig-parted, but {PARTED} is not installed")
    return installed and settings.engine in ("auto", "mig-parted")


def _parted(smi: Smi, wanted: list[Wanted]) -> None:
    """Lets mig-parted create the instances. The modes are already set, so it never resets a GPU.

    mig-parted also takes options from the environment (MIG_PARTED_…), which are removed.
    """
    entries = [entry_of(w.gpu, w.mode, w.shapes) for w in wanted]
    if not entries:
        return
    path = paths.RUN_DIR + "/parted.json"
    paths.write_json(path, {"version": "v1", "mig-configs": {"kiln": entries}})
    argv = [PARTED, "apply", "--config-file", paths.at(path), "--selected-config", "kiln"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("MIG_PARTED_")}
    rc, output = smi.call([*argv, "--skip-reset"], env)
    if rc:
        raise operation_failed("mig-parted failed: " + "; ".join(output.strip().splitlines()[-3:]))


def entry_of(gpu: int, mode: bool, shapes: Sequence[Shape]) -> dict[str, Any]:
    """The v1 entry for a GPU."""
    entry: dict[str, Any] = {"devices": [gpu], "mig-enabled": bool(mode)}
    if mode:
        entry["mig-devices"] = devices_of(shapes)
    return entry


def differences(gpus: Sequence[Gpu], wanted: dict[int, Wanted]) -> list[str]:
    """The differences from the layout, one sentence per GPU: mode, then instances in any order."""
    differing = []
    for gpu in gpus:
        aim = wanted.get(gpu.index)
        if aim is None:
            continue
        if gpu.current != aim.mode or gpu.pending != aim.mode:
            differing.append(
                "GPU {}: MIG mode is {}, wanted {}".format(
                    gpu.index, mode_words(gpu), "on" if aim.mode else "off"
                )
            )
            continue
        have = sorted((i.shape for i in gpu.instances), key=shape_order)
        if have != list(aim.shapes):
            differing.append(
                f"GPU {gpu.index}: has {shape_words(have)}, wanted {shape_words(aim.shapes)}"
            )
    return differing


def mode_words(gpu: Gpu) -> str:
    """`on`, `off`, or `off (on after a reset)`."""
    words = {True: "on", False: "off", None: "n/a"}
    later = f" ({words[gpu.pending]} after a reset)" if gpu.pending != gpu.current else ""
    return words[gpu.current] + later


def shape_words(shapes: Sequence[Shape]) -> str:
    """`1g.5gb=2,3g.20gb=1`; an instance without a compute instance is named as such."""
    counts = devices_of(shapes)
    parts = [f"{k}={n}" for k, n in sorted(counts.items(), reverse=True)]
    bare = [profile for profile, compute in shapes if not compute]
    parts += [counted(bare) + " without compute instance"] if bare else []
    return ",".join(parts) or "no instances"


def former(gpus: Sequence[Gpu], indices: list[int]) -> dict[int, Wanted]:
    """The state of the GPUs `indices` as a layout to restore."""
    return {
        g.index: Wanted(
            g.index,
            bool(g.current),
            tuple(sorted((i.shape for i in g.instances if i.compute), key=shape_order)),
        )
        for g in gpus
        if g.index in indices
    }


def _roll_back(
    smi: Smi,
    before: Sequence[Gpu],
    indices: list[int],
    types: dict[str, GpuType],
    settings: Settings,
    say: Callable[[str], None],
    error: MigError,
) -> MigError:
    """Restores the former layout or, if that fails, removes all instances; returns the error."""
    say(f"failed: {error.message}")
    own = settings._replace(engine="nvidia-smi")
    try:
        _reach(smi, smi.gpus(), former(before, indices), types, own, say)
        ending = "the former layout was restored"
    except MigError as second:
        say(f"the former layout could not be restored: {second.message}")
        try:
            now = smi.gpus()
            empty = {g.index: Wanted(g.index, bool(g.current)) for g in now if g.index in indices}
            for argv in destroy_commands(plan(now, empty, {})):
                _run(smi, argv, own, say)
            ending = "all instances were removed"
        except MigError as third:
            ending = f"and the clean-up failed too ({third.message})"
    return operation_failed(f"{error.message}; {ending}", error.hint)


def lock() -> TextIO:
    """Locks out other gpu-mig processes until the file is closed. Raises MigError when one runs."""
    os.makedirs(paths.at(paths.RUN_DIR), exist_ok=True)
    handle = open(paths.at(paths.RUN_DIR + "/lock"), "w")  # noqa: SIM115 - the caller closes it
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        raise operation_failed(
            "another gpu-mig is changing the GPUs", "wait until it has ended"
        ) from e
    return handle
