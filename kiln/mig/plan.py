"""Places MIG profiles on the fewest GPUs of an instance and draws the result; when many equal jobs
end on whole GPUs and on slices.

Jobs are independent, each takes one GPU or slice, and the next one starts when a place is free. The
start of pods and the change of a layout are not counted.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.paths import runtime_module
from kiln.mig.check import (
    all_layouts,
    expand,
    instances_with,
    label_names,
    label_slices,
    shipped_labels,
    translate,
    warnings,
)
from kiln.mig.profiles import gpus_on_instance

if TYPE_CHECKING:
    from gpu_mig.facts import GpuType


_placement = runtime_module("gpu_mig.placement")
_profile = runtime_module("gpu_mig.profile")
_target = runtime_module("gpu_mig.target")

# A GPU's contents: the count of each wanted profile.
Layout = tuple[int, ...]


def plan_layout(instance_type: str, want: str) -> dict[str, Any]:
    """Place the instances of `want` (`1g.5gb=40,3g.20gb=4`) on the GPUs of `instance_type`.

    Returns `gpus` (one dict per GPU in use: index, instances with profile, start, compute and
    memory slices), `used` and `available` (numbers of GPUs), and `label` (the layout as a v1
    configuration). If it does not fit, `fits` is false, and `reason` and `missing` name the
    instances left over.
    """
    machine, kind = gpus_on_instance(instance_type)
    shapes = instances_with(want)
    names = [profile for profile, _ in shapes]
    unknown = sorted({n for n in names if n not in kind.profiles})
    if unknown:
        like = translate(kind, unknown[0])
        raise KilnError(
            f"{instance_type} ({kind.name}) has no MIG profile {', '.join(unknown)}",
            hint=f"did you mean {like}? It has: {', '.join(kind.profiles)}",
        )
    kinds = sorted(set(names), key=_profile.by_size)
    wanted = tuple(names.count(k) for k in kinds)
    search = _Search(kind, kinds)
    layouts = search.fewest(wanted, machine.gpu_count)
    missing: Layout = (0,) * len(kinds)
    if layouts is None:
        layouts, missing = search.as_many_as_possible(wanted, machine.gpu_count)
    gpus = _lay_out(kind, kinds, layouts, list(shapes))
    left = expand(kinds, missing)
    return {
        "fits": not left,
        "reason": _too_much(left, machine.gpu_count) if left else None,
        "missing": {k: n for k, n in zip(kinds, missing, strict=True) if n},
        "instance_type": instance_type,
        "gpu": kind.name,
        "used": len(gpus),
        "available": machine.gpu_count,
        "memory_slices": kind.memory_slices,
        "compute_slices": kind.compute_slices,
        "gpus": gpus,
        "label": _label(gpus, machine.gpu_count),
        "warnings": warnings(kind, names),
    }


def _too_much(left: list[str], gpus: int) -> str:
    holders = "one GPU holds" if gpus == 1 else f"{gpus} GPUs hold"
    return f"{_target.counted(left)} more than {holders}"


class _Search:
    """Ways to spread counts of some profiles over GPUs of one type."""

    def __init__(self, kind: GpuType, kinds: Sequence[str]) -> None:
        self.kind, self.kinds = kind, list(kinds)
        every = [c for c in all_layouts(kind, self.kinds) if any(c)]
        possible = frozenset(every)
        # For the number of GPUs only full sets matter, those to which no instance can be added.
        self.full = sorted(
            (c for c in every if not any(_plus(c, i) in possible for i in range(len(c)))),
            key=self._bulk,
            reverse=True,
        )
        self.per_gpu = [kind.profile(k).max for k in self.kinds]

    def _bulk(self, counts: Layout) -> int:
        """The memory and compute slices of a layout: fuller GPUs are tried first."""
        slices = [self.kind.profile(k).memory + self.kind.profile(k).compute for k in self.kinds]
        return sum(n * int(s) for n, s in zip(counts, slices, strict=True))

    def at_least(self, wanted: Layout) -> int:
        """A lower bound on the number of GPUs: by count, compute slices and memory slices."""
        most = [-(-n // m) for n, m in zip(wanted, self.per_gpu, strict=True)]
        for attribute, total in (
            ("compute", self.kind.compute_slices),
            ("memory", self.kind.memory_slices),
        ):
            need = sum(
                n * int(getattr(self.kind.profile(k), attribute))
                for k, n in zip(self.kinds, wanted, strict=True)
            )
            most.append(-(-need // total))
        return int(max(most))

    def fewest(self, wanted: Layout, gpus: int) -> list[Layout] | None:
        """A spread over the fewest GPUs, or None if `gpus` GPUs are not enough."""
        for count in range(self.at_least(wanted), gpus + 1):
            layouts = self._spread(wanted, count, 0, set())
            if layouts is not None:
                return layouts
        return None

    def _spread(
        self, wanted: Layout, gpus: int, first: int, dead: set[tuple[Layout, int, int]]
    ) -> list[Layout] | None:
        if not any(wanted):
            return []
        if gpus == 0 or self.at_least(wanted) > gpus or (wanted, gpus, first) in dead:
            return None
        for at in range(first, len(self.full)):  # GPUs are equal: try layouts in one order only
            taken = tuple(map(min, self.full[at], wanted))
            if not any(taken):
                continue
            rest = self._spread(_minus(wanted, taken), gpus - 1, at, dead)
            if rest is not None:
                return [taken, *rest]
        dead.add((wanted, gpus, first))
        return None

    def as_many_as_possible(self, wanted: Layout, gpus: int) -> tuple[list[Layout], Layout]:
        """Fill every GPU, fullest layouts first. Returns (layouts, instances left over)."""
        layouts = []
        for _ in range(gpus):
            fitting = [tuple(map(min, c, wanted)) for c in self.full]
            taken = max(fitting, key=self._bulk)
            layouts.append(taken)
            wanted = _minus(wanted, taken)
        return [c for c in layouts if any(c)], wanted


def _plus(counts: Layout, i: int) -> Layout:
    return (*counts[:i], counts[i] + 1, *counts[i + 1 :])


def _minus(a: Layout, b: Layout) -> Layout:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _lay_out(
    kind: GpuType, kinds: Sequence[str], layouts: list[Layout], shapes: list[Any]
) -> list[dict[str, Any]]:
    """Start positions on every GPU; the wanted compute instances (`1c.3g.20gb`) in their order."""
    gpus = []
    for index, counts in enumerate(sorted(layouts, reverse=True)):
        placed = []
        for instance in _placement.fit(kind, expand(kinds, counts)):
            facts = kind.profile(instance.profile)
            shape = next(s for s in shapes if s[0] == instance.profile)
            shapes.remove(shape)
            placed.append(
                {
                    "profile": instance.profile,
                    "start": instance.start,
                    "memory_slices": facts.memory,
                    "compute_slices": facts.compute,
                    "compute_instances": list(shape[1]),
                }
            )
        gpus.append({"gpu": index, "instances": sorted(placed, key=lambda i: int(i["start"]))})
    return gpus


def _label(gpus: list[dict[str, Any]], available: int) -> dict[str, Any]:
    """The layout as a v1 configuration for /etc/kiln/mig-config.d/, with MIG off on unused GPUs."""
    groups: dict[str, dict[str, Any]] = {}
    for gpu in gpus:
        shapes = [(i["profile"], tuple(i["compute_instances"])) for i in gpu["instances"]]
        devices = _target.devices_of(shapes)
        entry = groups.setdefault(
            str(sorted(devices.items())),
            {"devices": [], "mig-enabled": True, "mig-devices": devices},
        )
        entry["devices"].append(gpu["gpu"])
    entries = list(groups.values())
    if len(gpus) < available:
        entries.append({"devices": list(range(len(gpus), available)), "mig-enabled": False})
    return {"version": "v1", "mig-configs": {"planned": entries}}


def draw_text(plan: dict[str, Any]) -> str:
    """One row per GPU, one cell per memory slice; `.` is an unused slice."""
    cell = max([9, *(-(-(len(_name(i)) + 2) // i["memory_slices"]) for i in _instances(plan))])
    lines = [f"{plan['instance_type']}: {plan['used']} of {plan['available']} {plan['gpu']} in use"]
    for gpu in plan["gpus"]:
        row, at = "", 0
        for instance in gpu["instances"]:
            row += _free(instance["start"] - at, cell)
            width = cell * instance["memory_slices"] - 2
            row += "[" + _name(instance).center(width) + "]"
            at = instance["start"] + instance["memory_slices"]
        row += _free(plan["memory_slices"] - at, cell)
        lines.append(f"  GPU {gpu['gpu']}  {row}  {_used(plan, gpu)} slices")
    lines += [f"  does not fit: {plan['reason']}"] if plan["reason"] else []
    return "\n".join([*lines, *(f"  warning: {text}" for text in plan["warnings"])])


def _instances(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [instance for gpu in plan["gpus"] for instance in gpu["instances"]]


def _free(slices: int, cell: int) -> str:
    return (" " + "." * (cell - 2) + " ") * slices


def _name(instance: dict[str, Any]) -> str:
    """The profile, with the number of its compute instances if it has several."""
    pieces = len(instance["compute_instances"])
    return f"{instance['profile']} in {pieces}" if pieces > 1 else str(instance["profile"])


def _used(plan: dict[str, Any], gpu: dict[str, Any]) -> str:
    compute = sum(i["compute_slices"] for i in gpu["instances"])
    memory = sum(i["memory_slices"] for i in gpu["instances"])
    return f"{compute}/{plan['compute_slices']} compute, {memory}/{plan['memory_slices']} memory"


def compare_ways(
    instance_type: str, jobs: int, seconds: float, slowdown: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Whole GPUs and each label whose profiles all have a slowdown, the soonest end first.

    `seconds` is one job alone on a whole GPU; `slowdown` maps a profile to seconds on such a slice
    / seconds on a whole GPU, as measured.
    """
    machine, kind = gpus_on_instance(instance_type)
    for profile in slowdown:
        if profile not in kind.profiles:
            hint = did_you_mean(profile, kind.profiles)
            raise KilnError(f"--slowdown: {kind.name} has no MIG profile {profile}", hint=hint)
    ways: dict[str, Mapping[str, int]] = {"whole GPUs": {"": machine.gpu_count}}
    for label in label_names(kind):
        try:
            per_gpu = label_slices(label, machine.gpu_count, kind, shipped_labels())
        except KilnError:
            continue  # not for this GPU
        slices: Counter[str] = Counter()
        for of_gpu in per_gpu.values():
            slices.update(of_gpu)
        if slices and slices.keys() <= slowdown.keys() and slices not in ways.values():
            ways[label] = slices
    rows = []
    for name, counts in ways.items():
        places = {key: (n, seconds * slowdown.get(key, 1)) for key, n in counts.items()}
        end = last_end(jobs, places)
        rows.append({"way": name, "at_once": sum(counts.values()), "seconds": round(end, 3)})
    return sorted(rows, key=lambda way: (way["seconds"], -way["at_once"]))


def last_end(jobs: int, places: Mapping[str, tuple[int, float]]) -> float:
    """Return when the last job ends, if each goes to the place where it ends soonest; `places`:
    number of places and seconds per job of each kind."""
    ends = [(each, each) for number, each in places.values() for _ in range(number)]
    heapq.heapify(ends)
    last = 0.0
    for _ in range(jobs):
        last, each = ends[0]
        heapq.heapreplace(ends, (last + each, each))
    return last
