"""When the last of many equal jobs ends: on whole GPUs, on the slices of each label, time-sliced.

The model: jobs are independent and equal, each takes one place (a GPU, a slice, a share of a GPU),
and the next one starts when a place is free. It counts neither the start of pods nor the change of
a layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln import facts
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.runtime_import import runtime_module
from kiln.mig.check import shipped_labels
from kiln.mig.layouts import slices_of
from kiln.mig.profiles import gpus_on_instance

if TYPE_CHECKING:
    from gpu_mig.facts import GpuType

_errors = runtime_module("gpu_mig.errors")
_profile = runtime_module("gpu_mig.profile")

MOST_JOBS = 1_000_000
# Quotients of floating-point numbers that are whole by construction.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Work:
    """Equal jobs. `seconds` is one job alone on a whole GPU, `memory_gib` what it needs.

    `slowdown` maps a profile to seconds on such a slice / seconds on a whole GPU, as measured.
    `busy` is the part of a lone job's time in which the GPU works: what is left, others can use
    when they share the GPU in time.
    """

    jobs: int
    seconds: float
    memory_gib: float = 0
    slowdown: Mapping[str, float] | None = None
    busy: float = 1.0


@dataclass(frozen=True)
class Way:
    """One way to run the jobs. `places` maps a kind of place to its number and seconds per job.

    `assumed` are the profiles whose slowdown nobody measured. `refused` says why it cannot be.
    """

    name: str
    places: Mapping[str, tuple[int, float]]
    assumed: tuple[str, ...] = ()
    refused: str = ""


def whole_jobs(text: str) -> int:
    """The number of `--jobs`. Raises KilnError (exit status 2) unless it can be counted."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MOST_JOBS:
        raise KilnError(f"--jobs {text}: give a number from 1 to {MOST_JOBS}", hint="--jobs 56")
    return int(text)


def measured_slowdowns(text: str) -> dict[str, float]:
    """`1g.5gb=2.54,2g.10gb=1.4` by profile. Raises KilnError (exit status 2) for anything else."""
    slowdowns = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = part.partition("=")
        try:
            spelled = str(_profile.parse(name.strip()))
            value = float(number) if number.isascii() else 0.0
        except (ValueError, _errors.MigError):
            spelled, value = "", 0.0
        if not spelled or not 1 <= value < 1e6:
            raise KilnError(
                f"--slowdown {part}: not a profile with a number of 1 or more",
                hint="seconds on the slice / seconds on a whole GPU: --slowdown 1g.5gb=2.54",
            )
        slowdowns[spelled] = value
    return slowdowns


def compare_ways(instance_type: str, work: Work) -> dict[str, Any]:
    """Whole GPUs, each label and time slicing on one instance, the soonest end first.

    Returns `ways`: name, places, waves, seconds, gpu_hours, usd (None without a known price) and
    `assumed`; and `refused`: name → why, such as slices without enough memory. Without a measured
    slowdown a slice is taken to be slower by the compute slices that it lacks: a job that does not
    fill a GPU is faster than that.
    Raises KilnError (exit status 2) for a type without MIG, for a job that no GPU of it can hold,
    and for a profile that its GPU does not have.
    """
    machine, kind = gpus_on_instance(instance_type)
    _require_sensible(instance_type, work, machine, kind)
    everything = [
        Way("whole GPUs", {"GPU": (machine.gpu_count, work.seconds)}),
        *_labels(work, machine, kind),
        _time_slicing(work, machine),
    ]
    price = facts.table("ec2-prices")["instances"]
    hourly = price["hourly"].get(instance_type)
    ways = [_judged(way, work, machine, hourly) for way in everything if not way.refused]
    return {
        "instance_type": instance_type,
        "gpu": kind.name,
        "gpus": machine.gpu_count,
        "jobs": work.jobs,
        "seconds": work.seconds,
        "memory_gib": work.memory_gib,
        "busy": work.busy,
        "ways": sorted(ways, key=lambda way: (way["seconds"], -way["at_once"], way["name"])),
        "refused": {way.name: way.refused for way in everything if way.refused},
        "price": {"usd_per_hour": hourly, **{key: price[key] for key in ("region", "as_of")}},
    }


def _require_sensible(
    instance_type: str, work: Work, machine: facts.InstanceType, kind: GpuType
) -> None:
    gib = machine.gpu_memory_mib / 1024
    if work.memory_gib > gib:
        raise KilnError(
            f"a job needs {work.memory_gib:g} GiB; a GPU of {instance_type} has {gib:.0f}",
            hint="./invoke which names what larger GPUs need",
        )
    if work.busy > 1:
        raise KilnError(f"--busy {work.busy:g} is more than all of the time", hint="--busy 0.4")
    for profile in work.slowdown or {}:
        if profile not in kind.profiles:
            raise KilnError(
                f"--slowdown: {kind.name} has no MIG profile {profile}",
                hint=did_you_mean(profile, kind.profiles),
            )


def _labels(work: Work, machine: facts.InstanceType, kind: GpuType) -> list[Way]:
    """A way for each layout of the shipped map that cuts these GPUs; equal labels are one."""
    names: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for label in shipped_labels():
        try:
            per_gpu = slices_of(label, machine.gpu_count, kind, shipped_labels())
        except KilnError:
            continue  # not for this GPU
        counts: dict[str, int] = {}
        for slices in per_gpu.values():
            for profile, n in slices.items():
                counts[profile] = counts.get(profile, 0) + n
        if counts:
            names.setdefault(tuple(sorted(counts.items())), []).append(label)
    return [_label(work, kind, " = ".join(same), dict(counts)) for counts, same in names.items()]


def _label(work: Work, kind: GpuType, name: str, counts: dict[str, int]) -> Way:
    places, assumed = {}, []
    for profile, n in counts.items():
        of_instance = kind.profile(_profile.parse(profile).gpu_instance)
        gib = of_instance.gib if of_instance.gib is not None else _profile.parse(profile).gb
        if gib < work.memory_gib:
            continue
        measured = (work.slowdown or {}).get(profile)
        if measured is None:
            assumed.append(profile)
        slower = measured or kind.compute_slices / of_instance.compute
        places[profile] = (n, work.seconds * slower)
    if not places:
        return Way(name, {}, refused=f"no slice has {work.memory_gib:g} GiB")
    return Way(name, places, tuple(assumed))


def _time_slicing(work: Work, machine: facts.InstanceType) -> Way:
    """As many jobs on a GPU at once as its memory holds, at most as there are."""
    fits = math.inf
    if work.memory_gib:
        fits = math.floor(machine.gpu_memory_mib / 1024 / work.memory_gib)
    each = int(min(fits, math.ceil(work.jobs / machine.gpu_count)))
    name = f"time slicing, {each} at once on a GPU"
    if each < 2:
        return Way(name, {}, refused="a GPU has no memory for a second job, or there is none")
    # While the GPU is busy with one, the others wait; the driver's own cost of a change is not in.
    slower = max(1.0, each * work.busy)
    return Way(name, {"share": (each * machine.gpu_count, work.seconds * slower)})


def _judged(
    way: Way, work: Work, machine: facts.InstanceType, hourly: float | None
) -> dict[str, Any]:
    seconds, waves = last_end(work.jobs, way.places)
    return {
        "name": way.name,
        "at_once": sum(n for n, _ in way.places.values()),
        "places": {
            name: {"number": n, "seconds_per_job": round(each, 3)}
            for name, (n, each) in way.places.items()
        },
        "waves": waves,
        "seconds": round(seconds, 3),
        "gpu_hours": round(seconds * machine.gpu_count / 3600, 4),
        "usd": None if hourly is None else round(seconds * float(hourly) / 3600, 4),
        "assumed": list(way.assumed),
    }


def last_end(jobs: int, places: Mapping[str, tuple[int, float]]) -> tuple[float, int]:
    """When the last job ends if each takes the place where it ends soonest, and the most jobs that
    one place runs one after the other.

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
    end = min(ends)
    return end, max(math.floor(end / each + _ROUNDING) for _, each in places.values())
