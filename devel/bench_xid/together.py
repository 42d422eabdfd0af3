"""Latency and idling, of all contenders at once: what the machine does meanwhile meets all."""

from __future__ import annotations

import contextlib
import os
import select
import statistics
import time
from dataclasses import dataclass
from typing import Any

from devel.bench_xid.contenders import Contender
from devel.bench_xid.kernel import EVENT, Kernel, Records, new_mark
from devel.inotify import Watch
from devel.processes import cpu_ns, switches_of

SLOT_S = 0.25


def measure(them: list[Contender], latencies: int, idle_s: float) -> dict[str, dict[str, Any]]:
    """Latency and idling, of all contenders at once: what the machine does meanwhile meets all."""
    kernel = Kernel(next(one.feed for one in them if one.feed))
    try:
        for one in them:
            one.start()
        times = latency(them, kernel, new_mark(), latencies)
        idled = idle(them, idle_s)
    finally:
        for one in them:
            one.stop()
        kernel.close()
    return {
        one.name: {
            **percentiles(times[one.name], times["floor"]),
            **idle_figures(idled[one.name], idled["floor"], SLOT_S),
        }
        for one in them
    }


def latency(them: list[Contender], kernel: Kernel, mark: str, count: int) -> dict[str, list[float]]:
    """Kernel write to change of each file, in ms, at odd intervals: at any phase of the tick."""
    times: dict[str, list[float]] = {one.name: [] for one in them}
    with contextlib.ExitStack() as stack:
        watches = {stack.enter_context(Watch(one.output)).fd: one for one in them}
        for n in range(count):
            time.sleep(0.013 + (n * 7 % 11) / 1000)
            missing = dict(watches)
            sizes = {one.name: one.output.stat().st_size for one in them}
            at = kernel.say(EVENT.format(n=n, mark=mark))
            while missing and time.monotonic() < at + 2:
                ready, _, _ = select.select(list(missing), [], [], 2)
                now = time.monotonic()
                for fd in ready:
                    os.read(fd, 65536)
                    if missing[fd].output.stat().st_size > sizes[missing[fd].name]:
                        times[missing.pop(fd).name].append((now - at) * 1000)
            for one in missing.values():
                times[one.name].append(2000)
    return times


def percentiles(times: list[float], floor: list[float]) -> dict[str, Any]:
    """p50, p99 and the greatest, and by how much later than the floor on the same line."""
    ordered = sorted(times)
    later = sorted(one - other for one, other in zip(times, floor, strict=True))
    last = int(len(times) * 0.99) - 1
    return {
        "latency_p50_ms": round(statistics.median(ordered), 3),
        "latency_p99_ms": round(ordered[last], 3),
        "latency_max_ms": round(ordered[-1], 3),
        "latency_over_floor_p50_ms": round(statistics.median(later), 3),
        "latency_over_floor_p99_ms": round(later[last], 3),
    }


@dataclass(frozen=True)
class Sample:
    """What a contender's processes have used so far, and how many kernel records there were."""

    switches: int
    cpu_ns: int
    records: int


def idle(them: list[Contender], seconds: float) -> dict[str, list[Sample]]:
    """Samples at each slot's end, until there were `seconds` of quiet (or four times that)."""
    time.sleep(2)
    pids = {one.name: one.pids() for one in them}
    samples: dict[str, list[Sample]] = {one.name: [] for one in them}
    records = Records()
    try:
        end = time.monotonic() + 4 * seconds
        while time.monotonic() < end:
            for name, family_of in pids.items():
                used = Sample(switches_of(family_of), cpu_ns(family_of), records.seen)
                samples[name].append(used)
            if len(quiet(samples["floor"])) * SLOT_S >= seconds:
                break
            time.sleep(SLOT_S)
            records.count()
    finally:
        records.close()
    return samples


def quiet(floor: list[Sample]) -> list[int]:
    """Slots (by the index of the sample that ends them) in which nobody had a reason to wake.

    No record came in the slot, nor in the two before it, whose work a busy machine may have put
    off. And the floor was not woken: now and then the kernel wakes all who wait for its log and
    has nothing to read for them (a record that its writer has not finished).
    """
    return [
        place
        for place in range(3, len(floor))
        if floor[place].records == floor[place - 3].records
        and floor[place].switches == floor[place - 1].switches
    ]


def idle_figures(samples: list[Sample], floor: list[Sample], slot_s: float) -> dict[str, Any]:
    """CPU and context switches of the quiet slots; those of the others beside them."""
    slots = quiet(floor)

    def spent(what: str, places: list[int]) -> int:
        ends = [(getattr(samples[n], what), getattr(samples[n - 1], what)) for n in places]
        return sum(end - start for end, start in ends)

    rest = [place for place in range(1, len(samples)) if place not in set(slots)]
    return {
        "idle_quiet_s": round(len(slots) * slot_s, 2),
        "idle_switches": spent("switches", slots),
        "idle_cpu_us": spent("cpu_ns", slots) // 1000,
        "idle_records": samples[-1].records - samples[0].records,
        "idle_other_switches": spent("switches", rest),
    }
