"""The nearest combination that works: changes of one or two fields, tried against all rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from kiln import facts
from kiln.base import versions, vocabulary
from kiln.compat.judge import Clash, clashes
from kiln.compat.rules.combination import Combination
from kiln.facts import table

# How hints show a field.
_SHOWN = {
    "kernel_module": "kernel_module:",
    "driver_source": "driver_source:",
    "cuda": "CUDA",
    "nccl": "NCCL",
    "efa": "EFA",
    "gdrcopy": "GDRCopy",
    "dcgm": "DCGM",
    "kubernetes": "Kubernetes",
    "parallelcluster": "ParallelCluster",
}
# Limits of the search: candidates per field of a pair, changes rebuilt per field, changes in a row.
_PAIR_WIDTH = 8
_MAX_REBUILDS = 8
_MAX_STEPS = 6

Change = dict[str, Any]
Rebuild = Callable[[Change], Combination]


@dataclass(frozen=True)
class Suggestion:
    """Changes that resolve a clash, the best one of each field. `whole`: no other clash remains."""

    changes: tuple[Change, ...] = ()
    whole: bool = False

    def __str__(self) -> str:
        shown = ", or ".join(_shown(change) for change in self.changes)
        return f"{'nearest that works' if self.whole else 'resolves this one'}: {shown}"


def suggest(
    combination: Combination, clash: Clash, rebuild: Rebuild | None = None
) -> Suggestion | None:
    """Changes that resolve a clash and break nothing else; None if there are none.

    The best change leaves the fewest warnings, then is nearest to the request. Two fields change
    together only if no single one helps. `rebuild` makes the changed combination if other fields
    depend on the changed one, as a recipe's packages do; by default only the field is replaced.
    """
    allowed = _broken(combination) - {clash.rule.id}

    def whole(change: Change) -> bool:
        return not _broken(_changed(combination, change, rebuild))

    def best_of(changes: list[Change]) -> Change | None:
        return _best(combination, changes, allowed, rebuild)

    moves = clash.rule.moves
    singles = [
        best
        for name in moves
        if (best := best_of([{name: value} for value in _near(combination, name)]))
    ]
    # Prefer changes that resolve all clashes; otherwise show those that resolve this one.
    if resolving := [change for change in singles if whole(change)]:
        return Suggestion(tuple(resolving), whole=True)
    if singles:
        return Suggestion(tuple(singles))
    for field, other_field in combinations(moves, 2):
        pairs = [
            {field: value, other_field: other_value}
            for value in _near(combination, field)[:_PAIR_WIDTH]
            for other_value in _near(combination, other_field)[:_PAIR_WIDTH]
        ]
        if best := best_of(pairs):
            return Suggestion((best,), whole(best))
    return None


def together(combination: Combination, rebuild: Rebuild | None = None) -> str | None:
    """One set of changes that resolves all clashes, found clash by clash; None if there is none."""
    done: Change = {}
    for _ in range(_MAX_STEPS):
        now = _changed(combination, done, rebuild)
        clash = next((clash for clash in clashes(now) if clash.blocks), None)
        if clash is None:
            return _shown(done)
        again = (lambda more, done=done: rebuild({**done, **more})) if rebuild else None
        suggestion = suggest(now, clash, again)
        if suggestion is None:
            return None
        done = {**done, **suggestion.changes[0]}
    return None


def _changed(combination: Combination, change: Change, rebuild: Rebuild | None) -> Combination:
    return rebuild(change) if rebuild else replace(combination, **change)


def _best(
    combination: Combination,
    changes: list[Change],
    allowed: set[str],
    rebuild: Rebuild | None,
) -> Change | None:
    plain = replace(combination, packages=(), downloads=()) if rebuild else combination
    scored = []
    for distance, change in enumerate(changes):
        left = clashes(replace(plain, **change))
        if {clash.rule.id for clash in left if clash.blocks} <= allowed:
            scored.append((len(left), distance, change))
    for _, _, change in sorted(scored, key=lambda entry: entry[:2])[:_MAX_REBUILDS]:
        if rebuild is None or _broken(rebuild(change)) <= allowed:
            return change
    return None


def _broken(combination: Combination) -> set[str]:
    return {clash.rule.id for clash in clashes(combination) if clash.blocks}


def _shown(change: Change) -> str:
    return " with ".join(f"{_SHOWN.get(name, name)} {value}" for name, value in change.items())


def _near(combination: Combination, name: str) -> list[Any]:
    """Candidates for a field, nearest to the present value first, without that value."""
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
    packaged = c.about.get("packaged_drivers", {}).values()
    newest = [branch.newest for branch in facts.branches().values() if branch.newest]
    return list(dict.fromkeys([*same_branch, *packaged, *newest]))


def _kernels(c: Combination) -> list[str]:
    return list(c.about.get("kernels", {}).get("entries", {}))


def _distros(c: Combination) -> list[str]:
    """Distributions of the same vendor with a parent AMI of the flavour and a known kernel, so that
    they can be judged; if there are none, those of any vendor."""
    flavors = table("distros")["flavors"]
    offered = flavors[c.flavor]["os"] if c.flavor in flavors else table("distros")["distros"]
    judged = [name for name in offered if "kernels" in facts.distro(name)]
    relatives = facts.relatives(c.distro)
    return [name for name in judged if name in relatives] or judged


_CANDIDATES: dict[str, Callable[[Combination], list[Any]]] = {
    "driver": _drivers,
    "cuda": lambda _: list(table("cuda")["releases"]),
    "kernel": _kernels,
    "kernel_module": lambda _: list(vocabulary.KERNEL_MODULES),
    "driver_source": lambda _: list(vocabulary.DRIVER_SOURCES),
    # Only releases whose CUDA is known.
    "nccl": lambda _: [nccl for nccl, entry in table("nccl")["versions"].items() if entry["cuda"]],
    "efa": lambda _: list(table("efa")["releases"]),
    "gdrcopy": lambda _: list(table("services")["gdrcopy"]["versions"]),
    "dcgm": lambda _: list(table("services")["dcgm"]["versions"]),
    "kubernetes": lambda _: list(table("distros")["flavors"]["eks"]["kubernetes"]),
    "parallelcluster": lambda _: list(table("distros")["flavors"]["parallelcluster"]["brings"]),
    "distro": _distros,
    "arch": lambda _: list(vocabulary.ARCHES),
}
