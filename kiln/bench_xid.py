"""`./invoke bench xid`: the Xid monitor against the original's approach and against a floor.

Three contenders in one run on this machine's real kernel log (root is needed):

* `monitor`: `gpu-xid monitor` as it ships, bytecode compiled. The burst is a storm of one Xid and
  so is folded; everywhere else each line has another process id and is written by itself.
* `original`: a Python loop over `tail -F` on a log file, as the original parser's, rewritten. Its
  file is written by the bench itself at the moment of the kernel write; on a machine syslog would
  do that, and take its own time.
* `floor`: `dmesg --follow | grep NVRM`: no parsing, no JSON, no checkpoint.

Every line of the bench carries the run's own marker: the kernel log is shared.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.errors import world_failed
from kiln.inotify import Watch
from kiln.paths import RUNTIME
from kiln.processes import cpu_ns, family, pss_kib, switches_of

PYTHON = "/usr/bin/python3"
_LIBRARY = RUNTIME / "opt" / "kiln" / "lib" / "gpu_xid"
_EVENT = "NVRM: Xid (PCI:0000:3b:00): 31, pid={n}, Ch {n:08x} {mark}"
_STORM = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, Ch {n:08x} {mark}"
_OTHER = "usb 1-1: new high-speed USB device number {n} using xhci_hcd {mark}"

# What the original parser does for each line, in its order: read a line of `tail -F -n 1000`, look
# for NVRM in its repr, print it, decode it strictly, open the log, append, close.
# source: aws-samples/aws-efa-nccl-baseami-pipeline, aws-hwaccel-event-parser.py (behaviour only)
_ORIGINAL = """
import platform, subprocess, sys
platform.platform()
source, target = sys.argv[1:]
tail = subprocess.Popen(
    ["tail", "-F", "-n", "1000", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE
)
while True:
    line = tail.stdout.readline()
    if "NVRM:" in str(line):
        log = open(target, "a")
        print(line.decode("utf8", errors="strict").strip())
        log.write(line.decode("utf8", errors="strict").strip())
        log.write(chr(10))
        log.close()
"""


@dataclass
class Contender:
    """A running parser: how it is started, where it writes and what it needs fed."""

    name: str
    command: list[str]
    output: Path
    feed: Path | None = None  # a file that the bench appends each line to
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.output.touch()
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(1.5)

    def stop(self, signal: int = 15) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal)
            self.process.wait()
            self.process = None

    def pids(self) -> list[int]:
        """The process and all its descendants."""
        return family(self.process.pid) if self.process else []


def contenders(folder: Path) -> list[Contender]:
    """The three, each writing into its own file of `folder`."""
    library = folder / "lib" / "gpu_xid"
    shutil.copytree(_LIBRARY, library, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([PYTHON, "-m", "compileall", "-q", str(library)], check=True)
    conf = folder / "gpu-xid.json"
    conf.write_text(json.dumps({"max_bytes": 1 << 30}))
    start = (
        f"import sys; sys.path.insert(0, {str(folder / 'lib')!r}); "
        "from gpu_xid.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    ours, original, floor = (folder / f"{name}.log" for name in ("monitor", "original", "floor"))
    feed = folder / "dmesg"
    feed.touch()
    return [
        Contender(
            "monitor",
            [PYTHON, "-ISB", "-c", start, "monitor", "--config", str(conf), "--log", str(ours)],
            ours,
        ),
        Contender("original", [PYTHON, "-c", _ORIGINAL, str(feed), str(original)], original, feed),
        Contender(
            "floor",
            ["sh", "-c", f"dmesg --follow | grep --line-buffered NVRM >> {floor}"],
            floor,
        ),
    ]


class Kernel:
    """Writes lines to the kernel log (a new descriptor each, as the kernel rate-limits per open
    file) and to the file that the original reads."""

    def __init__(self, feed: Path | None) -> None:
        self.feed = os.open(feed, os.O_WRONLY | os.O_APPEND) if feed else None

    def say(self, text: str) -> float:
        """Write one line; returns time.monotonic() just before."""
        # Without a newline the kernel keeps a record open for more, unreadable until the next one.
        data = text.encode() + b"\n"
        at = time.monotonic()
        fd = os.open("/dev/kmsg", os.O_WRONLY)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
        if self.feed is not None:
            os.write(self.feed, b"[%12.6f] %s" % (at, data))
        return at

    def close(self) -> None:
        if self.feed is not None:
            os.close(self.feed)


def run(idle_s: float = 60, latencies: int = 200, burst: int = 10000) -> dict[str, Any]:
    """Measure all contenders. Returns {"machine": …, "results": {name: {figure: value}}}.

    Units: latency_* ms, pss_kib KiB, cpu_us_* microseconds per line, burst_per_s lines a second,
    the others counts. Raises KilnError (exit code 1) without root or without /dev/kmsg.
    """
    if os.geteuid() != 0 or not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        raise world_failed(
            "the bench writes to /dev/kmsg", hint="run it as root on a Linux machine"
        )
    results = {}
    with tempfile.TemporaryDirectory(prefix="bench-xid-") as name:
        for contender in contenders(Path(name)):
            results[contender.name] = measure(contender, idle_s, latencies, burst)
    return {"machine": machine(), "lines": {"idle_s": idle_s, "burst": burst}, "results": results}


def measure(contender: Contender, idle_s: float, latencies: int, burst: int) -> dict[str, Any]:
    """All figures of one contender; it runs alone."""
    mark = f"{time.monotonic_ns() // 1000000 % 10**7:07d}"
    kernel = Kernel(contender.feed)
    figures: dict[str, Any] = {}
    try:
        contender.start()
        figures.update(latency(contender, kernel, mark, latencies))
        figures["pss_kib"] = sum(map(pss_kib, contender.pids()))
        figures["processes"] = len(contender.pids())
        figures["cpu_us_other_line"] = cpu_per_line(contender, kernel, _OTHER, mark, 4000)
        figures["cpu_us_event"] = cpu_per_line(contender, kernel, _EVENT, f"c{mark}", 4000)
        figures.update(idle(contender, idle_s))
        figures.update(flood(contender, kernel, f"b{mark}", burst))
        figures["pss_kib_after_burst"] = sum(map(pss_kib, contender.pids()))
        figures.update(restart(contender, kernel, f"r{mark}"))
    finally:
        contender.stop()
        kernel.close()
    return figures


def latency(contender: Contender, kernel: Kernel, mark: str, count: int) -> dict[str, Any]:
    """Kernel write to the file's change, in ms, at odd intervals so as to meet every tick phase."""
    times = []
    with Watch(contender.output) as watch:
        for n in range(count):
            time.sleep(0.013 + (n * 7 % 11) / 1000)
            watch.drain()
            before = contender.output.stat().st_size
            at = kernel.say(_EVENT.format(n=n, mark=mark))
            deadline = at + 2
            while contender.output.stat().st_size == before and time.monotonic() < deadline:
                watch.wait(deadline - time.monotonic())
            times.append((time.monotonic() - at) * 1000)
    times.sort()
    return {
        "latency_p50_ms": round(statistics.median(times), 3),
        "latency_p99_ms": round(times[int(len(times) * 0.99) - 1], 3),
        "latency_max_ms": round(times[-1], 3),
    }


def cpu_per_line(contender: Contender, kernel: Kernel, text: str, mark: str, count: int) -> float:
    """CPU microseconds a line over all processes. Written in groups that fit into any ring."""
    before = cpu_ns(contender.pids())
    for n in range(count):
        kernel.say(text.format(n=n, mark=mark))
        if n % 250 == 249:
            time.sleep(0.05)
    time.sleep(0.5)
    return round((cpu_ns(contender.pids()) - before) / count / 1000, 2)


def idle(contender: Contender, seconds: float) -> dict[str, Any]:
    """CPU and context switches while the kernel says nothing.

    The kernel log is the machine's: a stretch in which somebody else wrote to it is measured
    again, up to three times; `idle_kernel_lines` says how many lines came in the one reported.
    """
    time.sleep(2)
    for _ in range(3):
        pids = contender.pids()
        said, cpu, switches = kernel_lines(), cpu_ns(pids), switches_of(pids)
        time.sleep(seconds)
        figures = {
            "idle_cpu_us": (cpu_ns(pids) - cpu) // 1000,
            "idle_switches": switches_of(pids) - switches,
            "idle_kernel_lines": kernel_lines() - said,
        }
        if not figures["idle_kernel_lines"]:
            break
    return figures


def kernel_lines() -> int:
    """Number of the newest kernel log record, or 0 when there is none to read."""
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    newest = 0
    try:
        while True:
            try:
                newest = int(os.read(fd, 8192).split(b",", 2)[1])
            except BrokenPipeError:  # noqa: PERF203
                continue
            except BlockingIOError:
                return newest
    finally:
        os.close(fd)


def flood(contender: Contender, kernel: Kernel, mark: str, count: int) -> dict[str, Any]:
    """As fast as the bench can write: how many arrive, in what time, at what CPU."""
    before = cpu_ns(contender.pids())
    start = time.monotonic()
    for n in range(count):
        kernel.say(_STORM.format(n=n, mark=mark))
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


def restart(contender: Contender, kernel: Kernel, mark: str, count: int = 1500) -> dict[str, Any]:
    """kill -9, `count` lines, start again: how many are lost, how many of all lines come twice."""
    earlier = len(all_lines(contender.output))
    contender.stop(signal=9)
    for n in range(count):
        kernel.say(_EVENT.format(n=n, mark=mark))
    contender.start()
    settle(contender.output)
    distinct = len(set(marked(contender.output, mark)))
    return {
        "restart_lost": count - distinct,
        "restart_repeated": len(all_lines(contender.output)) - earlier - distinct,
    }


def all_lines(path: Path) -> list[str]:
    """Lines that carry an event (not the monitor's own records)."""
    return [line for line in path.read_text().splitlines() if "NVRM: Xid" in line]


def count_of(line: str) -> int:
    """How many events a line stands for: the monitor folds a storm and says the number."""
    return int(json.loads(line).get("count", 1)) if line.startswith("{") else 1


def marked(path: Path, mark: str) -> list[str]:
    """The distinguishing part (`Ch 00000001 mark`) of each line with that mark."""
    return [line.partition("Ch ")[2].partition(mark)[0] for line in all_lines(path) if mark in line]


def settle(path: Path) -> None:
    """Wait until the file has not changed for a second."""
    size = -1
    while size != path.stat().st_size:
        size = path.stat().st_size
        time.sleep(1)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "kernel": os.uname().release,
        "cpus": os.cpu_count(),
        "python": subprocess.run(
            [PYTHON, "-V"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "load_1m": os.getloadavg()[0],
    }


# figure -> (what it is, the aim for `monitor`, or None)
_ROWS: dict[str, tuple[str, float | None]] = {
    "latency_p50_ms": ("latency p50, ms", 4),
    "latency_p99_ms": ("latency p99, ms", 12),
    "latency_max_ms": ("latency max, ms", None),
    "processes": ("processes", 1),
    "pss_kib": ("memory (PSS), KiB", 8192),
    "pss_kib_after_burst": ("memory after the burst, KiB", None),
    "cpu_us_other_line": ("CPU per other line, µs", 6),
    "cpu_us_event": ("CPU per event, µs", 20),
    "idle_cpu_us": ("CPU while idle, µs", None),
    "idle_switches": ("context switches while idle", 0),
    "idle_kernel_lines": ("others' kernel lines meanwhile", None),
    "burst_written_per_s": ("burst: written, lines/s", None),
    "burst_per_s": ("burst: through, lines/s", None),
    "burst_cpu_us_line": ("burst: CPU per line, µs", None),  # aim: a third of the original's
    "burst_lost": ("burst: lost", 0),
    "restart_lost": ("restart: lost of 1,500", 0),
    "restart_repeated": ("restart: repeated", 0),
}


def table(report: dict[str, Any]) -> str:
    """The report as a text table with the aims; `!` marks an aim that was missed."""
    names = list(report["results"])
    lines = [f"{'':32}" + "".join(f"{name:>12}" for name in names) + f"{'aim':>10}"]
    for key, (title, fixed) in _ROWS.items():
        cells = "".join(f"{report['results'][name][key]:>12}" for name in names)
        third = round(report["results"]["original"][key] / 3, 2)
        aim = third if key == "burst_cpu_us_line" else fixed
        goal = "" if aim is None else f"<= {aim:g}"
        missed = aim is not None and report["results"]["monitor"][key] > aim
        lines.append(f"{title:32}{cells}{goal:>10}{' !' if missed else ''}")
    lines.append("")
    lines.append(", ".join(f"{key} {value}" for key, value in report["machine"].items()))
    return "\n".join(lines)


def main() -> int:
    """`python -m kiln.bench_xid [IDLE_SECONDS]`."""
    report = run(idle_s=float(sys.argv[1]) if len(sys.argv) > 1 else 60)
    print(table(report))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
