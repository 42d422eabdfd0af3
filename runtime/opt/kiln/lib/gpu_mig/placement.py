"""Sets of GPU instances that a GPU can hold at once, and the position of each.

A set fits when every instance has one of the start positions of its profile, no two share a memory
slice, the GPU has enough compute slices, no profile exceeds its maximum count, and the GPU has
enough media engines (one `+me`; beside a `+me.all` only `-me`). Rules and start positions:
NVIDIA MIG User Guide and `nvidia-smi mig -lgipp` listings, through profiles.json.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from .facts import ENGINES, GpuType
from .profile import by_size


class Placed(NamedTuple):
    """A GPU instance and its first memory slice."""

    profile: str
    start: int


def fit(gpu: GpuType, names: Sequence[str]) -> list[Placed] | None:
    """A position for each of `names`; None when they do not fit.

    Largest first: the order in which to create them. Raises MigError for a profile that the GPU
    does not have.
    """
    return None if over_budget(gpu, names) else _place(gpu, sorted(names, key=by_size), 0)


def _place(gpu: GpuType, names: Sequence[str], taken: int) -> list[Placed] | None:
    if not names:
        return []
    facts = gpu.profile(names[0])
    for start in facts.starts:
        mask = _mask(gpu, names[0], start)
        if mask & taken:
            continue
        rest = _place(gpu, names[1:], taken | mask)
        if rest is not None:
            return [Placed(names[0], start), *rest]
    return None


def _mask(gpu: GpuType, name: str, start: int) -> int:
    return ((1 << gpu.profile(name).memory) - 1) << start


def over_budget(gpu: GpuType, names: Sequence[str]) -> str | None:
    """Return why a set exceeds a limit (count, compute, memory, media), or None; ignores
    positions."""
    facts = [gpu.profile(name) for name in names]
    for f in facts:
        if names.count(f.name) > f.max:
            return f"{names.count(f.name)} × {f.name} requested, {gpu.name} holds at most {f.max}"
    for what, needed, available in (
        ("compute", sum(f.compute for f in facts), gpu.compute_slices),
        ("memory", sum(f.memory for f in facts), gpu.memory_slices),
    ):
        if needed > available:
            return f"{_sum(names)} need {needed} of {available} {what} slices"
    for i, (engine, available) in enumerate(zip(ENGINES, gpu.engines)):
        needed = sum(f.engines[i] for f in facts)
        if needed > available:
            return f"{_sum(names)} need {needed} of {available} {engine.upper()} engines"
    return None


def why_not(gpu: GpuType, names: Sequence[str]) -> str | None:
    """One sentence on why a set does not fit, or None when it fits."""
    reason = over_budget(gpu, names)
    if reason or fit(gpu, names) is not None:
        return reason
    stuck = sorted(names, key=by_size)
    while len(stuck) > 1 and fit(gpu, stuck[:-1]) is None:
        stuck.pop()
    last = gpu.profile(stuck[-1])
    return "{} leave no free start position for {} (it takes {} memory slices from {})".format(
        _sum(stuck[:-1]), last.name, last.memory, ", ".join(str(s) for s in last.starts)
    )


def _sum(names: Sequence[str]) -> str:
    kinds = sorted(set(names), key=by_size)
    return " + ".join(f"{names.count(k)} × {k}" for k in kinds)
