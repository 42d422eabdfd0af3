"""`bench xid`: how its figures are made of what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from devel.bench_xid import kernel
from devel.bench_xid.alone import own_lines
from devel.bench_xid.report import ROWS, table
from devel.bench_xid.together import Sample, idle_figures, percentiles


def samples(*steps: tuple[int, int]) -> list[Sample]:
    """Samples from (context switches, kernel records) of each slot; a switch costs 50 µs."""
    result = [Sample(100, 0, 7)]
    for switches, records in steps:
        last = result[-1]
        cpu = last.cpu_ns + 50000 * switches
        result.append(Sample(last.switches + switches, cpu, last.records + records))
    return result


QUIET = (0, 0)


def test_a_wake_up_that_a_record_explains_is_not_the_monitors_own() -> None:
    both = samples(QUIET, QUIET, (1, 1), (1, 0), QUIET, QUIET, QUIET, QUIET)
    result = idle_figures(both, both, 0.25)
    assert (result["idle_switches"], result["idle_cpu_us"]) == (0, 0)
    assert (result["idle_records"], result["idle_other_switches"]) == (1, 2)
    assert result["idle_quiet_s"] == 0.75


def test_a_timer_of_its_own_is_counted() -> None:
    ours = samples(*[QUIET, (1, 0)] * 6)
    result = idle_figures(ours, samples(*[QUIET] * 12), 0.25)
    assert result["idle_switches"] == 5
    assert result["idle_cpu_us"] == 250


def test_a_wake_up_of_all_who_wait_for_the_kernel_log_is_the_kernels() -> None:
    all_woken = samples(*[QUIET] * 5, (1, 0), *[QUIET] * 5)
    assert idle_figures(all_woken, all_woken, 0.25)["idle_switches"] == 0


def test_latency_is_told_beside_the_floors_on_the_same_lines() -> None:
    floor = [float(n) for n in range(1, 101)]
    result = percentiles([item + 0.5 for item in floor], floor)
    assert (result["latency_p50_ms"], result["latency_p99_ms"]) == (51.0, 99.5)
    assert (result["latency_over_floor_p50_ms"], result["latency_over_floor_p99_ms"]) == (0.5, 0.5)


def test_a_line_that_somebody_else_wrote_does_not_count_for_the_bench(tmp_path: Path) -> None:
    ours = kernel.EVENT.format(n=31, mark="r1234567")
    log = tmp_path / "log"
    log.write_text(f'{{"raw":"{ours}","safe":7}}\nNVRM: Xid (PCI:0000:3b:00): 31, Ch 7\n{ours}\n')
    assert own_lines(log) == ["0000001f r1234567"] * 2


def report(**monitors: float) -> dict[str, Any]:
    row: dict[str, Any] = {**dict.fromkeys(ROWS, 0), "burst_cpu_us_line": 3.0}
    results = {name: dict(row) for name in ("monitor", "original", "floor")}
    results["monitor"].update({"burst_cpu_us_line": 1.0, **monitors})
    about = {"tick_ms": 4.0, "cpus": 2, "others_cpu_percent": 0}
    return {"machine": about, "lines": {"burst": 10000}, "results": results}


def test_a_missed_aim_is_marked_and_a_met_one_is_not() -> None:
    def marked(**monitors: float) -> list[str]:
        return [
            line.split(",")[0] for line in table(report(**monitors)).splitlines() if "!" in line
        ]

    assert marked() == []
    assert marked(latency_p99_ms=12.0) == []
    assert marked(latency_p99_ms=12.1) == ["latency p99"], "three ticks of 4 ms"
    assert marked(burst_cpu_us_line=1.01) == ["burst: CPU per line"], "a third of the original's"


def test_a_loaded_machine_is_named_beside_the_figures() -> None:
    output = report()
    assert "Other processes used" not in table(output)
    output["machine"]["others_cpu_percent"] = 40
    assert "Other processes used 40 % of the CPUs" in table(output)
