"""Which sets of GPU instances a GPU can hold at once, and the position of each.

A set fits when every instance has one of the start positions of its profile, no two share a memory
slice, the GPU has enough compute slices, no profile exceeds its maximum count, and the GPU has
enough media engines (one `+me`; beside a `+me.all` only `-me`). Rules and start positions:
NVIDIA MIG User Guide and `nvidia-smi mig -lgipp` listings, through profiles.json.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple, Sequence

from .facts import ENGINES, GpuType
from .profile import by_size, parse


class Placed(NamedTuple):
    """A GPU instance and its first memory slice."""

    profile: str
    start: int


def fit(gpu: GpuType, names: Sequence[str], fixed: Sequence[Placed] = ()) -> list[Placed] | None:
    """A position for each of `names` around the `fixed` instances; None when they do not fit.

    Returns only the new instances, largest first: the order in which to create them.
    Raises MigError for a profile that the GPU does not have.
    """
    if over_budget(gpu, list(names) + [p.profile for p in fixed]):
        return None
    taken = 0
    for instance in fixed:
        taken |= _mask(gpu, instance.profile, instance.start)
    return _place(gpu, sorted(names, key=by_size), taken)


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
    """Why a set exceeds a limit (count, compute, memory, media), or None; ignores positions."""
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


def why_not(gpu: GpuType, names: Sequence[str], fixed: Sequence[Placed] = ()) -> str | None:
    """One sentence on why a set does not fit, or None when it fits."""
    everything = list(names) + [p.profile for p in fixed]
    reason = over_budget(gpu, everything)
    if reason or fit(gpu, names, fixed) is not None:
        return reason
    stuck = sorted(names, key=by_size)
    while len(stuck) > 1 and fit(gpu, stuck[:-1], fixed) is None:
        stuck.pop()
    last = gpu.profile(stuck[-1])
    return "{} leave no free start position for {} (it takes {} memory slices from {})".format(
        _sum(stuck[:-1] + [p.profile for p in fixed]),
        last.name,
        last.memory,
        ", ".join(str(s) for s in last.starts),
    )


def _sum(names: Sequence[str]) -> str:
    kinds = sorted(set(names), key=by_size)
    return " + ".join(f"{names.count(k)} × {k}" for k in kinds)


def layouts(gpu: GpuType, names: Sequence[str] = ()) -> Iterator[tuple[int, ...]]:
    """Every set that fits, as counts in the order of `names` (default: all profiles by size).

    The empty set comes first. A100: 128 sets of its 7 profiles.
    """
    kinds = list(names) or sorted(gpu.profiles, key=by_size)
    known = {(0,) * len(kinds)}
    frontier = list(known)
    yield frontier[0]
    while frontier:
        counts = frontier.pop()
        for i in range(len(kinds)):
            more = (*counts[:i], counts[i] + 1, *counts[i + 1 :])
            if more not in known and fit(gpu, expand(kinds, more)) is not None:
                known.add(more)
                frontier.append(more)
                yield more


def expand(kinds: Sequence[str], counts: Sequence[int]) -> list[str]:
    """The names of a set given as counts: `(['1g.5gb'], (2,))` is `['1g.5gb', '1g.5gb']`."""
    return [kind for kind, count in zip(kinds, counts) for _ in range(count)]


def nearest(gpu: GpuType, names: Sequence[str]) -> list[str]:
    """The set that fits and is most like `names`: least change of slices, then of the number.

    Profiles that this GPU lacks are replaced by its most similar ones.
    """
    target = sorted((translate(gpu, name) for name in names), key=by_size)
    if fit(gpu, target) is not None:
        return target
    kinds = sorted(gpu.profiles, key=by_size)
    best: list[str] = []
    best_cost: tuple[int, ...] | None = None
    for counts in layouts(gpu):
        names_here = expand(kinds, counts)
        if not names_here or len(names_here) > len(target):
            continue
        cost = _distance(gpu, target, names_here)
        if best_cost is None or cost < best_cost:
            best, best_cost = names_here, cost
    return best


def _distance(
    gpu: GpuType, target: Sequence[str], other: Sequence[str]
) -> tuple[int, int, int, int, int]:
    """(slices lost or gained, instances dropped, attributes changed, kinds, names changed)."""
    lost = renamed = attributes = 0
    for i, name in enumerate(target):
        a = gpu.profile(name)
        if i < len(other):
            b = gpu.profile(other[i])
            lost += abs(a.compute - b.compute) + abs(a.memory - b.memory)
            renamed += a.name != b.name
            attributes += a.name.partition("b")[2] != b.name.partition("b")[2]
        else:
            lost += a.compute + a.memory + 2
    return (lost, len(target) - len(other), attributes, len(set(other)), renamed)


def translate(gpu: GpuType, name: str) -> str:
    """The profile of this GPU that is most like a profile of another GPU."""
    asked = parse(name)
    if asked.gpu_instance in gpu.profiles:
        return asked.gpu_instance

    def unlike(candidate: str) -> tuple[int, bool, bool, int, int]:
        has = parse(candidate)
        return (
            abs(has.g - asked.g),
            (has.attributes, has.without_media) != (asked.attributes, asked.without_media),
            bool(has.attributes or has.without_media),
            abs(has.gb - asked.gb),
            has.gb,
        )

    return min(gpu.profiles, key=unlike)
