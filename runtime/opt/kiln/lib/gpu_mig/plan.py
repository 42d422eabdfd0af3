"""Differences from the layout on each GPU, and the nvidia-smi commands that change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .facts import GpuType, by_device_id, compute_profile_ids
from .profile import parse
from .smi import Gpu, Smi
from .target import Shape, Wanted, check, counted, devices_of, shape_order


class Change(NamedTuple):
    """Work on a GPU that differs from its layout."""

    gpu: int
    mode: bool | None  # the mode to set, None when it need not change
    reset: bool | None  # whether the new mode needs a GPU reset, None when not known
    instances: bool  # it has GPU instances, which are destroyed first
    compute: bool  # and compute instances
    create: tuple[Shape, ...]


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
    """Return True if `kind` has this profile in a similar size: GB200 has 3g.93gb or 3g.95gb."""
    asked = parse(name)
    return any(
        p._replace(gb=asked.gb) == asked and abs(p.gb - asked.gb) * 20 <= asked.gb
        for p in map(parse, kind.profiles)
    )


def changes(
    smi: Smi, gpus: Sequence[Gpu], wanted: dict[int, Wanted], types: dict[str, GpuType]
) -> list[Change]:
    """Return the differences, in index order. Raises MigError when a layout cannot fit, before any
    change."""
    kinds = known_types(gpus, wanted, types, smi)
    for index, kind in kinds.items():
        check(wanted[index], kind)
    todo = []
    for gpu in gpus:
        aim = wanted.get(gpu.index)
        if aim is None or not difference(gpu, aim):
            continue
        kind = kinds[gpu.index]
        settled = gpu.current == aim.mode and gpu.pending == aim.mode
        reset = False if gpu.current == aim.mode else kind.reset if kind else None
        compute = any(instance.compute for instance in gpu.instances)
        mode = None if settled else aim.mode
        todo.append(Change(gpu.index, mode, reset, bool(gpu.instances), compute, aim.shapes))
    return todo


def destroy_commands(todo: list[Change]) -> list[list[str]]:
    """Compute instances first, then their GPU instances; one command for several GPUs."""
    argvs = []
    for compute, gpus in _alike(todo, lambda c: (c.compute,) if c.instances else ()):
        argvs += [["mig", "-i", gpus, "-dci"]] if compute[0] else []
        argvs.append(["mig", "-i", gpus, "-dgi"])
    return argvs


def creations(todo: list[Change]) -> list[tuple[str, str, str]]:
    """(GPU indices, profiles, compute profile ids or "" for full size), largest instances first."""
    steps = []
    for shapes, gpus in _alike(todo, lambda c: c.create):
        full: list[str] = []
        for profile, compute in shapes:
            if compute == (parse(profile).g,):
                full.append(profile)
                continue
            steps += [(gpus, ",".join(full), "")] if full else []
            full = []
            sizes = ",".join(str(compute_profile_ids()[size]) for size in compute)
            steps += [(gpu, profile, sizes) for gpu in gpus.split(",")]
        steps += [(gpus, ",".join(full), "")] if full else []
    return steps


def mode_groups(todo: list[Change]) -> list[tuple[bool, str]]:
    """(mode to set, "0,1,2"), so that one command serves several GPUs."""
    groups = _alike(todo, lambda c: () if c.mode is None else (c.mode,))
    return [(mode, gpus) for (mode,), gpus in groups]


def _alike(
    todo: list[Change], work: Callable[[Change], tuple[Any, ...]]
) -> list[tuple[tuple[Any, ...], str]]:
    """GPUs with equal work as (work, "0,1,2"); without those that have none."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for change in todo:
        if work(change):
            groups.setdefault(work(change), []).append(str(change.gpu))
    return [(key, ",".join(gpus)) for key, gpus in groups.items()]


def differences(gpus: Sequence[Gpu], wanted: dict[int, Wanted]) -> list[str]:
    """The differences from the layout, one sentence per GPU."""
    found = [difference(g, wanted[g.index]) for g in gpus if g.index in wanted]
    return [text for text in found if text]


def difference(gpu: Gpu, aim: Wanted) -> str:
    """Return how a GPU differs from its layout, "" when it does not: mode, then instances in any
    order."""
    if gpu.current != aim.mode or gpu.pending != aim.mode:
        wish = "on" if aim.mode else "off"
        return f"GPU {gpu.index}: MIG mode is {mode_words(gpu)}, wanted {wish}"
    have = sorted((i.shape for i in gpu.instances), key=shape_order)
    if have != list(aim.shapes):
        return f"GPU {gpu.index}: has {shape_words(have)}, wanted {shape_words(aim.shapes)}"
    return ""


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
