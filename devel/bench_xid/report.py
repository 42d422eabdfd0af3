"""Formats the report as a text table with the aim of each figure."""

from __future__ import annotations

from typing import Any

# Aims as multiples of the kernel's tick (clock_getres: 4 ms at HZ 250).
_TICKS = {"latency_p50_ms": 1, "latency_p99_ms": 3}
# Figure → title, and aim for `monitor` or None.
ROWS: dict[str, tuple[str, float | None]] = {
    "latency_p50_ms": ("latency p50, ms", None),
    "latency_p99_ms": ("latency p99, ms", None),
    "latency_max_ms": ("latency max, ms", None),
    "latency_over_floor_p50_ms": ("later than the floor, p50, ms", None),
    "latency_over_floor_p99_ms": ("later than the floor, p99, ms", None),
    "processes": ("processes", 1),
    "pss_kib": ("memory (PSS), KiB", 10240),
    "rss_kib": ("memory if nothing is shared, KiB", None),
    "pss_kib_after_burst": ("memory after the burst, KiB", None),
    "cpu_us_other_line": ("CPU per other line, µs", 6),
    "cpu_us_event": ("CPU per event, µs", 20),
    "idle_quiet_s": ("idle: quiet seconds", None),
    "idle_switches": ("idle: context switches in these", 0),
    "idle_cpu_us": ("idle: CPU in these, µs", 0),
    "idle_records": ("others' kernel records meanwhile", None),
    "idle_other_switches": ("switches when not quiet", None),
    "burst_written_per_s": ("burst: written, lines/s", None),
    "burst_per_s": ("burst: through, lines/s", None),
    "burst_cpu_us_line": ("burst: CPU per line, µs", None),  # aim: a third of the original's
    "burst_lost": ("burst: lost", 0),
    "restart_lost": ("restart: lost of 1,500", 0),
    "restart_repeated": ("restart: repeated", 0),
}
# Above this load by other processes, a missed aim may be the machine's fault.
_LOADED_PERCENT = 10


def aim(key: str, report: dict[str, Any]) -> float | None:
    """The upper limit for a figure of `monitor` in this run; None when there is none."""
    if key in _TICKS:
        return float(_TICKS[key] * report["machine"]["tick_ms"])
    if key == "burst_cpu_us_line":
        return float(round(report["results"]["original"][key] / 3, 2))
    return ROWS[key][1]


def table(report: dict[str, Any]) -> str:
    """The report as a text table with the aims; `!` marks an aim that was missed."""
    names = list(report["results"])
    lines = [f"{'':34}" + "".join(f"{name:>12}" for name in names) + f"{'aim':>10}"]
    for key, (title, _) in ROWS.items():
        cells = "".join(f"{report['results'][name][key]:>12}" for name in names)
        limit = aim(key, report)
        goal = "" if limit is None else f"<= {limit:g}"
        missed = limit is not None and report["results"]["monitor"][key] > limit
        lines.append(f"{title:34}{cells}{goal:>10}{' !' if missed else ''}")
    lines.append("")
    lines += [
        ", ".join(f"{key} {value}" for key, value in report[part].items())
        for part in ("machine", "lines")
    ]
    others = report["machine"]["others_cpu_percent"]
    if others >= _LOADED_PERCENT:
        lines.append(
            f"Other processes used {others} % of the CPUs, which affects times and, through cold "
            "caches, CPU per line. Compare with the floor's figures of the same run."
        )
    return "\n".join(lines)
