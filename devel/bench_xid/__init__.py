"""`./invoke bench --what xid`: compares the Xid monitor with the original's approach and a minimum.

Three contenders in one run on this machine's real kernel log (root is needed):

* `monitor`: `gpu-xid monitor` as it ships, bytecode compiled. The burst repeats a single Xid, so
  the monitor folds it; all other lines have different process ids and are written one by one.
* `original`: a Python loop over `tail -F` on a log file, rewritten after the original parser. The
  bench writes that file together with the kernel log; on a real machine syslog writes it later.
* `floor`: `dmesg --follow | grep NVRM`: no parsing, no JSON, no checkpoint.

Every line of the bench contains a marker of the run, because the kernel log is shared.

The machine may be busy. Therefore latency is measured for all three at once on the same lines; the
cost per line is CPU time, the median of several rounds; idle wake-ups count only when the kernel
log had no record to read; and the report says how much CPU other processes used.

`kernel` writes the lines, `contenders` starts the parsers, `together` and `alone` measure them,
`load` describes the machine, `report` formats the result.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from devel.bench_xid import alone, contenders, together
from devel.bench_xid.load import cpu_s, machine
from devel.bench_xid.report import table
from kiln.base.errors import operation_failed

__all__ = ["run", "table"]


def run(
    idle_s: float = 60,
    latencies: int = 300,
    lines: int = 2000,
    burst: int = 10000,
    rounds: int = 3,
) -> dict[str, Any]:
    """Measure all. Returns {"machine": …, "lines": …, "results": {contender: {figure: value}}}.

    Units: latency_* ms, pss_kib KiB, cpu_us_* microseconds per line, burst_per_s lines per second,
    else counts. Raises operation_failed without root or without /dev/kmsg.
    """
    if os.geteuid() != 0 or not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        raise operation_failed(
            "the bench writes to /dev/kmsg", hint="run it as root on a Linux machine"
        )
    before, load_before, start = cpu_s(), os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-xid-") as name:
        parsers = contenders.prepare(Path(name))
        results = together.measure(parsers, latencies, idle_s)
        for contender in parsers:
            results[contender.name].update(alone.measure(contender, lines, burst, rounds=rounds))
            results[contender.name].update(alone.restarted(contender))
    about = machine()
    spent = [now - then for now, then in zip(cpu_s(), before, strict=True)]
    about["load_1m_before"] = load_before
    about["others_cpu_percent"] = round(
        100 * max(0.0, spent[0] - spent[1]) / (time.monotonic() - start) / about["cpus"]
    )
    counts = {"idle_s": idle_s, "latencies": latencies, "lines": lines, "burst": burst}
    return {"machine": about, "lines": {**counts, "rounds": rounds}, "results": results}
