"""Every layout that a GPU can hold, and the nearest one to a wish."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kiln.base.runtime_import import runtime_module

if TYPE_CHECKING:
    from gpu_mig.facts import GpuType

_placement = runtime_module("gpu_mig.placement")
_profile = runtime_module("gpu_mig.profile")
_errors = runtime_module("gpu_mig.errors")


def all_layouts(gpu: GpuType, names: Sequence[str] = ()) -> Iterator[tuple[int, ...]]:
    """Every set that fits, as counts in the order of `names` (default: all profiles by size).

    The empty set comes first. A100: 128 sets of its 7 profiles.
    """
    kinds = list(names) or sorted(gpu.profiles, key=_profile.by_size)
    known = {(0,) * len(kinds)}
    frontier = list(known)
    yield frontier[0]
    while frontier:
        counts = frontier.pop()
        for i in range(len(kinds)):
            more = (*counts[:i], counts[i] + 1, *counts[i + 1 :])
            if more not in known and _placement.fit(gpu, expand(kinds, more)) is not None:
                known.add(more)
                frontier.append(more)
                yield more


def expand(kinds: Sequence[str], counts: Sequence[int]) -> list[str]:
    """The names of a set given as counts: `(['1g.5gb'], (2,))` is `['1g.5gb', '1g.5gb']`."""
    return [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]


def nearest_layout(gpu: GpuType, names: Sequence[str]) -> list[str]:
    """The set that fits and is most like `names`: least change of slices, then of the number.

    Profiles that this GPU lacks are replaced by its most similar ones.
    """
    target = sorted((translate(gpu, name) for name in names), key=_profile.by_size)
    if _placement.fit(gpu, target) is not None:
        return target
    kinds = sorted(gpu.profiles, key=_profile.by_size)
    best: list[str] = []
    best_cost: tuple[int, ...] | None = None
    for counts in all_layouts(gpu):
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
    asked = _profile.parse(name)
    if asked.gpu_instance in gpu.profiles:
        return str(asked.gpu_instance)

    def unlike(candidate: str) -> tuple[int, bool, bool, int, int]:
        has = _profile.parse(candidate)
        return (
            abs(has.g - asked.g),
            (has.attributes, has.without_media) != (asked.attributes, asked.without_media),
            bool(has.attributes or has.without_media),
            abs(has.gb - asked.gb),
            has.gb,
        )

    return min(gpu.profiles, key=unlike)


def parse_devices(text: str) -> list[tuple[str, int]]:
    """`2g.20gb=2,4g.40gb` as `[(name, count), …]`, in the order given. Raises MigError.

    A comma inside an attribute list (`1g.24gb+gfx,me`) belongs to the name.
    """
    wanted: list[tuple[str, int]] = []
    for part in re.split(r",(?=\s*[0-9])", text.strip(" ,")) if text.strip(" ,") else []:
        name, sep, count = part.strip().partition("=")
        spelled = str(_profile.parse(name.strip()))
        if sep and not re.fullmatch(r"[0-9]{1,9}", count.strip()):
            raise _errors.MigError(
                f"{part.strip()!r}: {count.strip()!r} is not a count",
                "write profile=count, for example 1g.10gb=7",
            )
        wanted.append((spelled, _profile.countable(spelled, int(count)) if sep else 1))
    if not any(count for _, count in wanted):
        raise _errors.MigError(f"no instance is requested in {text!r}", "write profile=count")
    return wanted
