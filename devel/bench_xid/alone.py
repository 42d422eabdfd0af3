"""Memory, CPU per line and lost lines of a contender that runs alone."""

from __future__ import annotations

import json
import re
import statistics
import time
from pathlib import Path
from typing import Any

from devel.bench_xid.contenders import Contender
from devel.bench_xid.kernel import EVENT, OTHER, STORM, Kernel, new_mark
from devel.processes import cpu_ns, pss_kib, rss_kib

_OWN = re.compile(r"Ch ([0-9a-f]{8} [a-z]?\d{7})")


def measure(contender: Contender, lines: int, burst: int, *, rounds: int) -> dict[str, Any]:
    """Memory and CPU per line of a contender, while the bench runs nothing else."""
    results = []
    for _ in range(rounds):
        mark = new_mark()
        kernel = Kernel(contender.feed)
        try:
            contender.start()
            figures: dict[str, Any] = {
                "cpu_us_other_line": cpu_per_line(contender, kernel, OTHER, mark, lines),
                "cpu_us_event": cpu_per_line(contender, kernel, EVENT, f"c{mark}", lines),
            }
            figures["processes"] = len(contender.pids())
            figures["pss_kib"] = sum(map(pss_kib, contender.pids()))
            figures["rss_kib"] = sum(map(rss_kib, contender.pids()))
            figures.update(flood(contender, kernel, f"b{mark}", burst))
            figures["pss_kib_after_burst"] = sum(map(pss_kib, contender.pids()))
            results.append(figures)
        finally:
            contender.stop()
            kernel.close()
    medians = {key: statistics.median(result[key] for result in results) for key in results[0]}
    return {**medians, "burst_lost": sum(result["burst_lost"] for result in results)}


def cpu_per_line(contender: Contender, kernel: Kernel, text: str, mark: str, count: int) -> float:
    """CPU microseconds per line, of all processes. Lines come in groups that fit any buffer."""
    before = cpu_ns(contender.pids())
    for n in range(count):
        kernel.say(text.format(n=n, mark=mark))
        if n % 250 == 249:
            time.sleep(0.05)
    time.sleep(0.5)
    return round((cpu_ns(contender.pids()) - before) / count / 1000, 2)


def flood(contender: Contender, kernel: Kernel, mark: str, count: int) -> dict[str, Any]:
    """Write at full speed: how many lines arrive, how fast, and their CPU time."""
    before = cpu_ns(contender.pids())
    start = time.monotonic()
    for n in range(count):
        kernel.say(STORM.format(n=n, mark=mark))
    written = time.monotonic() - start
    settle(contender.output)
    arrived = sum(count_of(line) for line in all_lines(contender.output) if mark in line)
    took = contender.output.stat().st_mtime - (time.time() - (time.monotonic() - start))
    return {
        "burst_written_per_s": round(count / written),
        "burst_per_s": round(arrived / max(took, 0.001)),
        "burst_lost": count - arrived,
        "burst_cpu_us_line": round((cpu_ns(contender.pids()) - before) / count / 1000, 2),
    }


def restarted(contender: Contender) -> dict[str, Any]:
    """The lines that a contender loses or repeats after kill -9."""
    kernel = Kernel(contender.feed)
    try:
        contender.start()
        return restart(contender, kernel, f"r{new_mark()}")
    finally:
        contender.stop()
        kernel.close()


def restart(contender: Contender, kernel: Kernel, mark: str, count: int = 1500) -> dict[str, Any]:
    """kill -9, write `count` lines, start again: how many are lost, how many come twice.

    Only the bench's own lines count, because the kernel log is shared.
    """
    before = own_lines(contender.output)
    contender.stop(signal=9)
    for n in range(count):
        kernel.say(EVENT.format(n=n, mark=mark))
    contender.start()
    settle(contender.output)
    after = own_lines(contender.output)
    return {
        "restart_lost": count - sum(line.endswith(mark) for line in set(after)),
        "restart_repeated": repeated(after) - repeated(before),
    }


def repeated(lines: list[str]) -> int:
    """How many lines are repetitions."""
    return len(lines) - len(set(lines))


def all_lines(path: Path) -> list[str]:
    """The lines with an event (not the monitor's own records)."""
    return [line for line in path.read_text().splitlines() if "NVRM: Xid" in line]


def count_of(line: str) -> int:
    """The number of events in a line: the monitor folds repetitions and gives a count."""
    return int(json.loads(line).get("count", 1)) if line.startswith("{") else 1


def own_lines(path: Path) -> list[str]:
    """Number and mark (`00000001 r1234567`) of each line that the bench wrote."""
    return _OWN.findall(path.read_text())


def settle(path: Path) -> None:
    """Wait until the file has not changed for a second."""
    size = -1
    while size != path.stat().st_size:
        size = path.stat().st_size
        time.sleep(1)
