"""The nearest combination that works: one field changed, tried against all rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

from kiln import facts, versions
from kiln.facts import table
from kiln.judge import Clash, clashes
from kiln.rules.combination import Combination

# What a person would call a field in a hint.
_SHOWN = {
    "kernel_module": "kernel_module:",
    "driver_source": "driver_source:",
    "cuda": "CUDA",
    "nccl": "NCCL",
    "efa": "EFA",
    "cudnn": "cuDNN",
    "gdrcopy": "GDRCopy",
    "dcgm": "DCGM",
    "kubernetes": "Kubernetes",
    "parallelcluster": "ParallelCluster",
}
_PAIR_WIDTH = 8
_TRIED = 8

Rebuild = Callable[[dict[str, Any]], Combination]


def suggest(combination: Combination, clash: Clash, rebuild: Rebuild | None = None) -> list[str]:
    """Changes that mend a clash and break nothing else, the best one of each field.

    Best is: fewest warnings left, then nearest to what was asked. Two fields are changed
    together only when no single one helps. `rebuild` makes the combination of a change where
    more depends on a field than itself: in a recipe the packages do.
    """
    allowed = _broken(combination) - {clash.rule.id}

    def changed(change: dict[str, Any]) -> Combination:
        return rebuild(change) if rebuild else replace(combination, **change)

    def best_of(changes: list[dict[str, Any]]) -> dict[str, Any] | None:
        return _best(combination, changes, allowed, rebuild)

    moves = clash.rule.moves
    singles = [
        best
        for name in moves
        if (best := best_of([{name: value} for value in _near(combination, name)]))
    ]
    # What mends everything comes alone; with several clashes a part may be all one field can do.
    whole = [change for change in singles if not _broken(changed(change))]
    if singles:
        return [_shown(change) for change in whole or singles]
    for one, other in combinations(moves, 2):
        pairs = [
            {one: first, other: second}
            for first in _near(combination, one)[:_PAIR_WIDTH]
            for second in _near(combination, other)[:_PAIR_WIDTH]
        ]
        if best := best_of(pairs):
            return [_shown(best)]
    return []


def _best(
    combination: Combination,
    changes: list[dict[str, Any]],
    allowed: set[str],
    rebuild: Rebuild | None,
) -> dict[str, Any] | None:
    plain = replace(combination, packages=(), downloads=()) if rebuild else combination
    scored = []
    for distance, change in enumerate(changes):
        left = clashes(replace(plain, **change))
        if {one.rule.id for one in left if one.blocks} <= allowed:
            scored.append((len(left), distance, change))
    for _, _, change in sorted(scored, key=lambda entry: entry[:2])[:_TRIED]:
        if rebuild is None or _broken(rebuild(change)) <= allowed:
            return change
    return None


def _broken(combination: Combination) -> set[str]:
    return {one.rule.id for one in clashes(combination) if one.blocks}


def _shown(change: dict[str, Any]) -> str:
    return " with ".join(f"{_SHOWN.get(name, name)} {value}" for name, value in change.items())


def _near(combination: Combination, name: str) -> list[Any]:
    """Candidates of a field, nearest to the present value first, that value left out."""
    present = getattr(combination, name)
    options = [value for value in _CANDIDATES[name](combination) if value != present]
    if not isinstance(present, str) or not versions.key(present):
        return options
    at = versions.key(present)
    ranked = sorted(options, key=versions.key)
    place = sum(versions.key(value) < at for value in ranked)
    return sorted(options, key=lambda value: abs(ranked.index(value) - place))


def _drivers(c: Combination) -> list[str]:
    same_branch = list(c.branch.versions) if c.branch else []
    return list(
        dict.fromkeys([*same_branch, *(b.newest for b in facts.branches().values() if b.newest)])
    )


def _kernels(c: Combination) -> list[str]:
    return list(c.about.get("kernels", {}).get("entries", {}))


_CANDIDATES: dict[str, Callable[[Combination], list[Any]]] = {
    "driver": _drivers,
    "cuda": lambda _: list(table("cuda")["releases"]),
    "kernel": _kernels,
    "kernel_module": lambda _: ["open", "proprietary", "both"],
    "driver_source": lambda _: ["distro", "runfile", "repo"],
    "nccl": lambda _: list(table("nccl")["versions"]),
    "efa": lambda _: list(table("efa")["releases"]),
    "gdrcopy": lambda _: list(table("services")["gdrcopy"]["versions"]),
    "dcgm": lambda _: list(table("services")["dcgm"]["versions"]),
    "cudnn": lambda _: [entry["from"] for entry in table("cuda")["cudnn"]],
    "kubernetes": lambda _: list(table("distros")["flavors"]["eks"]["kubernetes"]),
    "parallelcluster": lambda _: list(table("distros")["flavors"]["parallelcluster"]["brings"]),
    "distro": lambda c: [
        name
        for name in table("distros")["distros"]
        if name[:6] == c.distro[:6] or c.distro[:2] == name[:2]
    ],
    "arch": lambda _: ["x86_64", "arm64"],
}
