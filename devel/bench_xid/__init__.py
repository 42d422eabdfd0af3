"""`./invoke bench --what xid`: the Xid monitor against the original's approach and against a floor.

Three contenders in one run on this machine's real kernel log (root is needed):

* `monitor`: `gpu-xid monitor` as it ships, bytecode compiled. The burst is a storm of one Xid and
  so is folded; everywhere else each line has another process id and is written by itself.
* `original`: a Python loop over `tail -F` on a log file, as the original parser's, rewritten. Its
  file is written by the bench itself at the moment of the kernel write; on a machine syslog would
  do that, and take its own time.
* `floor`: `dmesg --follow | grep NVRM`: no parsing, no JSON, no checkpoint.

Every line of the bench carries the run's own marker: the kernel log is shared.

The machine may be at work meanwhile. So latency is taken from all three at once, on the same
lines; cost per line is CPU time, not wall time, the median of several rounds; a wake-up while idle
is one for which the kernel gave no reason; and how much CPU others took is said.

`kernel` writes the lines, `contenders` are started, `together` and `alone` measure them, `load`
says on what machine, `report` makes a table of it.
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

    Units: latency_* ms, pss_kib KiB, cpu_us_* microseconds per line, burst_per_s lines a second,
    the others counts. Raises KilnError (exit code 1) without root or without /dev/kmsg.
    """
    if os.geteuid() != 0 or not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        raise operation_failed(
            "the bench writes to /dev/kmsg", hint="run it as root on a Linux machine"
        )
    before, load_before, start = cpu_s(), os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-xid-") as name:
        them = contenders.prepare(Path(name))
        results = together.measure(them, latencies, idle_s)
        for contender in them:
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
