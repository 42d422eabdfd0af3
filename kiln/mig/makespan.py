"""When the last of many equal jobs ends: on whole GPUs, and on the slices of each label.

Jobs are independent, each takes one GPU or slice, and the next one starts when a place is free. The
start of pods and the change of a layout are not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from kiln.base.errors import KilnError, did_you_mean
from kiln.mig.check import label_names, label_slices, shipped_labels
from kiln.mig.profiles import gpus_on_instance

MOST_JOBS = 1_000_000
# Quotients of floating-point numbers that are whole by construction.
_ROUNDING = 1e-9


def whole_jobs(text: str) -> int:
    """Read `--jobs`. Raises KilnError (exit status 2) unless it can be counted."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MOST_JOBS:
        raise KilnError(f"--jobs {text}: give a number from 1 to {MOST_JOBS}", hint="--jobs 56")
    return int(text)


def compare_ways(
    instance_type: str, jobs: int, seconds: float, slowdown: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Whole GPUs and each label whose profiles all have a slowdown, the soonest end first.

    `seconds` is one job alone on a whole GPU; `slowdown` maps a profile to seconds on such a slice
    / seconds on a whole GPU, as measured. Raises KilnError (exit status 2) for a type without MIG
    and for a profile that its GPU does not have.
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
    """Return when the last job ends; `places`: number of places and seconds per job of each kind.

    A place of `d` seconds per job has done floor(T / d) jobs at time T; the end is the first T at
    which all are done, which is a multiple of some `d`.
    """

    def done(end: float) -> int:
        return sum(n * math.floor(end / each + _ROUNDING) for n, each in places.values())

    ends = []
    for _, each in places.values():
        low, high = 1, jobs
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if done(middle * each) >= jobs else (middle + 1, high)
        ends.append(low * each)
    return min(ends)
