"""Latency and idle cost of all contenders at once, so that other load affects all of them."""

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


def measure(parsers: list[Contender], latencies: int, idle_s: float) -> dict[str, dict[str, Any]]:
    """The figures of each contender, by name."""
    kernel = Kernel(next(parser.feed for parser in parsers if parser.feed))
    try:
        for parser in parsers:
            parser.start()
        times = latency(parsers, kernel, new_mark(), latencies)
        samples = idle(parsers, idle_s)
    finally:
        for parser in parsers:
            parser.stop()
        kernel.close()
    return {
        parser.name: {
            **percentiles(times[parser.name], times["floor"]),
            **idle_figures(samples[parser.name], samples["floor"], SLOT_S),
        }
        for parser in parsers
    }


def latency(
    parsers: list[Contender], kernel: Kernel, mark: str, count: int
) -> dict[str, list[float]]:
    """Milliseconds from the kernel write to the change of each output file.

    The intervals vary, so that the writes meet every phase of the kernel's tick.
    """
    times: dict[str, list[float]] = {parser.name: [] for parser in parsers}
    with contextlib.ExitStack() as stack:
        watches = {stack.enter_context(Watch(parser.output)).fd: parser for parser in parsers}
        for n in range(count):
            time.sleep(0.013 + (n * 7 % 11) / 1000)
            missing = dict(watches)
            sizes = {parser.name: parser.output.stat().st_size for parser in parsers}
            at = kernel.say(EVENT.format(n=n, mark=mark))
            while missing and time.monotonic() < at + 2:
                ready, _, _ = select.select(list(missing), [], [], 2)
                now = time.monotonic()
                for fd in ready:
                    os.read(fd, 65536)
                    if missing[fd].output.stat().st_size > sizes[missing[fd].name]:
                        times[missing.pop(fd).name].append((now - at) * 1000)
            for parser in missing.values():
                times[parser.name].append(2000)
    return times


def percentiles(times: list[float], floor: list[float]) -> dict[str, Any]:
    """p50, p99 and maximum, and the delay relative to the floor on the same line."""
    ordered = sorted(times)
    later = sorted(own - minimum for own, minimum in zip(times, floor, strict=True))
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
    """What a contender's processes have used so far, and the number of kernel records."""

    switches: int
    cpu_ns: int
    records: int


def idle(parsers: list[Contender], seconds: float) -> dict[str, list[Sample]]:
    """Samples at the end of each slot, until `seconds` were quiet or four times that is over."""
    time.sleep(2)
    pids = {parser.name: parser.pids() for parser in parsers}
    samples: dict[str, list[Sample]] = {parser.name: [] for parser in parsers}
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
    """Slots without a reason to wake up, by the index of the sample that ends them.

    There was no record in the slot, nor in the two before it, whose work a busy machine may have
    delayed. And the floor was not woken: sometimes the kernel wakes all readers of its log although
    there is nothing to read, because a writer has not finished its record.
    """
    return [
        place
        for place in range(3, len(floor))
        if floor[place].records == floor[place - 3].records
        and floor[place].switches == floor[place - 1].switches
    ]


def idle_figures(samples: list[Sample], floor: list[Sample], slot_s: float) -> dict[str, Any]:
    """CPU and context switches in the quiet slots, and in all other slots."""
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
