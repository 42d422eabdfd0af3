"""Which sets of GPU instances a GPU can hold at once, and where each one goes.

A set fits when every instance gets one of its profile's start positions, no two share a memory
slice, the compute slices add up to no more than the GPU has, no profile exceeds its own maximum,
and the media engines add up (one `+me`; beside a `+me.all` only `-me`). Rules and start positions:
NVIDIA MIG User Guide and `nvidia-smi mig -lgipp` listings, through profiles.json.
"""

from __future__ import annotations

from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .facts import ENGINES, GpuType
from .profile import by_size, parse


class Placed(NamedTuple):
    """A GPU instance and the memory slice it starts at."""

    profile: str
    start: int


def fit(gpu: GpuType, names: Sequence[str], fixed: Sequence[Placed] = ()) -> Optional[List[Placed]]:
    """A place for each of `names` around the `fixed` instances; None when there is none.

    Returns only the new instances, largest first: the order in which to create them.
    Raises MigError for a profile the GPU does not have.
    """
    if over_budget(gpu, list(names) + [p.profile for p in fixed]):
        return None
    taken = 0
    for instance in fixed:
        taken |= _mask(gpu, instance.profile, instance.start)
    return _place(gpu, sorted(names, key=by_size), taken)


def _place(gpu, names, taken):
    if not names:
        return []
    facts = gpu.profile(names[0])
    for start in facts.starts:
        mask = _mask(gpu, names[0], start)
        if mask & taken:
            continue
        rest = _place(gpu, names[1:], taken | mask)
        if rest is not None:
            return [Placed(names[0], start)] + rest
    return None


def _mask(gpu, name, start):
    return ((1 << gpu.profile(name).memory) - 1) << start


def over_budget(gpu: GpuType, names: Sequence[str]) -> Optional[str]:
    """Why a set exceeds a sum (count, compute, memory, media), or None; positions aside."""
    facts = [gpu.profile(name) for name in names]
    for f in facts:
        if names.count(f.name) > f.max:
            return "{} × {} asked for, {} holds at most {}".format(
                names.count(f.name), f.name, gpu.name, f.max
            )
    for what, needed, available in (
        ("compute", sum(f.compute for f in facts), gpu.compute_slices),
        ("memory", sum(f.memory for f in facts), gpu.memory_slices),
    ):
        if needed > available:
            return "{} need {} of {} {} slices".format(_sum(names), needed, available, what)
    for i, (engine, available) in enumerate(zip(ENGINES, gpu.engines)):  # noqa: B905
        needed = sum(f.engines[i] for f in facts)
        if needed > available:
            return "{} need {} of {} {} engines".format(
                _sum(names), needed, available, engine.upper()
            )
    return None


def why_not(gpu: GpuType, names: Sequence[str], fixed: Sequence[Placed] = ()) -> Optional[str]:
    """One sentence saying why a set cannot be placed, or None when it can."""
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


def _sum(names):
    kinds = sorted(set(names), key=by_size)
    return " + ".join("{} × {}".format(names.count(k), k) for k in kinds)


def layouts(gpu: GpuType, names: Sequence[str] = ()) -> Iterator[Tuple[int, ...]]:
    """Every set that fits, as counts in the order of `names` (default: all profiles by size).

    The empty set comes first. A100: 128 sets of its 7 profiles.
    """
    kinds = list(names) or sorted(gpu.profiles, key=by_size)
    found = {(0,) * len(kinds)}
    frontier = list(found)
    yield frontier[0]
    while frontier:
        counts = frontier.pop()
        for i in range(len(kinds)):
            more = counts[:i] + (counts[i] + 1,) + counts[i + 1 :]
            if more not in found and fit(gpu, expand(kinds, more)) is not None:
                found.add(more)
                frontier.append(more)
                yield more


def expand(kinds: Sequence[str], counts: Sequence[int]) -> List[str]:
    """Counts back to names: `(['1g.5gb'], (2,))` is `['1g.5gb', '1g.5gb']`."""
    return [kind for kind, count in zip(kinds, counts) for _ in range(count)]  # noqa: B905


def nearest(gpu: GpuType, names: Sequence[str]) -> List[str]:
    """The set that fits and changes the wish least: first keep the number of instances, then size.

    Names this GPU does not have are read as the profile of the same compute share.
    """
    wish = sorted((translate(gpu, name) for name in names), key=by_size)
    if fit(gpu, wish) is not None:
        return wish
    kinds = sorted(gpu.profiles, key=by_size)
    best: List[str] = []
    best_cost: Optional[tuple] = None
    for counts in layouts(gpu):
        names_here = expand(kinds, counts)
        if not names_here or len(names_here) > len(wish):
            continue
        cost = _distance(gpu, wish, names_here)
        if best_cost is None or cost < best_cost:
            best, best_cost = names_here, cost
    return best


def _distance(gpu, wish, other):
    """(slices lost or gained, instances dropped, attributes changed, kinds, names changed)."""
    lost = renamed = attributes = 0
    for i, name in enumerate(wish):
        a = gpu.profile(name)
        if i < len(other):
            b = gpu.profile(other[i])
            lost += abs(a.compute - b.compute) + abs(a.memory - b.memory)
            renamed += a.name != b.name
            attributes += a.name.partition("b")[2] != b.name.partition("b")[2]
        else:
            lost += a.compute + a.memory + 2
    return (lost, len(wish) - len(other), attributes, len(set(other)), renamed)


def translate(gpu: GpuType, name: str) -> str:
    """The profile of this GPU that a name from another GPU most likely means."""
    asked = parse(name)
    if asked.gpu_instance in gpu.profiles:
        return asked.gpu_instance

    def unlike(candidate):
        has = parse(candidate)
        return (
            abs(has.g - asked.g),
            (has.attributes, has.without_media) != (asked.attributes, asked.without_media),
            bool(has.attributes or has.without_media),
            abs(has.gb - asked.gb),
            has.gb,
        )

    return min(gpu.profiles, key=unlike)
