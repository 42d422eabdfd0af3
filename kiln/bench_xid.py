"""`./invoke bench xid`: the Xid monitor against the original's approach and against a floor.

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
"""

from __future__ import annotations

import contextlib
import json
import os
import select
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
from kiln.processes import cpu_ns, family, pss_kib, rss_kib, switches_of

PYTHON = "/usr/bin/python3"
_LIBRARY = RUNTIME / "opt" / "kiln" / "lib" / "gpu_xid"
_SLOT_S = 0.25
_COARSE = 6  # CLOCK_MONOTONIC_COARSE, which ticks with the kernel; `time` has no name for it
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
        raise world_failed(
            "the bench writes to /dev/kmsg", hint="run it as root on a Linux machine"
        )
    before, load_before, start = cpu_s(), os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-xid-") as name:
        them = contenders(Path(name))
        results = together(them, latencies, idle_s)
        for contender in them:
            results[contender.name].update(alone(contender, lines, burst, rounds=rounds))
            results[contender.name].update(restarted(contender))
    about = machine()
    spent = [now - then for now, then in zip(cpu_s(), before, strict=True)]
    about["load_1m_before"] = load_before
    about["others_cpu_percent"] = round(
        100 * max(0.0, spent[0] - spent[1]) / (time.monotonic() - start) / about["cpus"]
    )
    counts = {"idle_s": idle_s, "latencies": latencies, "lines": lines, "burst": burst}
    return {"machine": about, "lines": {**counts, "rounds": rounds}, "results": results}


def together(them: list[Contender], latencies: int, idle_s: float) -> dict[str, dict[str, Any]]:
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
            **idle_figures(idled[one.name], idled["floor"], _SLOT_S),
        }
        for one in them
    }


def alone(contender: Contender, lines: int, burst: int, *, rounds: int) -> dict[str, Any]:
    """Memory and CPU per line of one contender with nothing else of the bench running."""
    found = []
    for _ in range(rounds):
        mark = new_mark()
        kernel = Kernel(contender.feed)
        try:
            contender.start()
            figures: dict[str, Any] = {
                "cpu_us_other_line": cpu_per_line(contender, kernel, _OTHER, mark, lines),
                "cpu_us_event": cpu_per_line(contender, kernel, _EVENT, f"c{mark}", lines),
            }
            figures["processes"] = len(contender.pids())
            figures["pss_kib"] = sum(map(pss_kib, contender.pids()))
            figures["rss_kib"] = sum(map(rss_kib, contender.pids()))
            figures.update(flood(contender, kernel, f"b{mark}", burst))
            figures["pss_kib_after_burst"] = sum(map(pss_kib, contender.pids()))
            found.append(figures)
        finally:
            contender.stop()
            kernel.close()
    middle = {key: statistics.median(one[key] for one in found) for key in found[0]}
    return {**middle, "burst_lost": sum(one["burst_lost"] for one in found)}


def restarted(contender: Contender) -> dict[str, Any]:
    """What a kill -9 loses and repeats."""
    kernel = Kernel(contender.feed)
    try:
        contender.start()
        return restart(contender, kernel, f"r{new_mark()}")
    finally:
        contender.stop()
        kernel.close()


def new_mark() -> str:
    """What tells the lines of one measurement from all others in the kernel log."""
    return f"{time.monotonic_ns() // 1000000 % 10**7:07d}"


def latency(them: list[Contender], kernel: Kernel, mark: str, count: int) -> dict[str, list[float]]:
    """Kernel write to change of each file, in ms, at odd intervals: at any phase of the tick."""
    times: dict[str, list[float]] = {one.name: [] for one in them}
    with contextlib.ExitStack() as stack:
        watches = {stack.enter_context(Watch(one.output)).fd: one for one in them}
        for n in range(count):
            time.sleep(0.013 + (n * 7 % 11) / 1000)
            missing = dict(watches)
            sizes = {one.name: one.output.stat().st_size for one in them}
            at = kernel.say(_EVENT.format(n=n, mark=mark))
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


def cpu_per_line(contender: Contender, kernel: Kernel, text: str, mark: str, count: int) -> float:
    """CPU microseconds a line over all processes. Written in groups that fit into any ring."""
    before = cpu_ns(contender.pids())
    for n in range(count):
        kernel.say(text.format(n=n, mark=mark))
        if n % 250 == 249:
            time.sleep(0.05)
    time.sleep(0.5)
    return round((cpu_ns(contender.pids()) - before) / count / 1000, 2)


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
            if len(quiet(samples["floor"])) * _SLOT_S >= seconds:
                break
            time.sleep(_SLOT_S)
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


class Records:
    """Counts kernel records as they come; nobody is woken for it."""

    def __init__(self) -> None:
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self.fd, 0, os.SEEK_END)
        self.seen = 0

    def count(self) -> None:
        while True:
            try:
                os.read(self.fd, 8192)
            except BrokenPipeError:
                pass  # overwritten unread: there were some
            except BlockingIOError:
                return
            self.seen += 1

    def close(self) -> None:
        os.close(self.fd)


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


def cpu_s() -> tuple[float, float]:
    """CPU seconds used so far: by the whole machine, and by this bench and its ended children."""
    ticks = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    busy = sum(map(int, ticks[:3])) + sum(map(int, ticks[5:8]))  # not idle, not iowait
    own = os.times()
    return busy / os.sysconf("SC_CLK_TCK"), sum(own[:4])


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "kernel": os.uname().release,
        "tick_ms": round(time.clock_getres(_COARSE) * 1000, 3),
        "cpus": os.cpu_count(),
        "python": subprocess.run(
            [PYTHON, "-V"], capture_output=True, text=True, check=True
        ).stdout.strip(),
        "load_1m": os.getloadavg()[0],
    }


# Aims that are times of the kernel's tick (clock_getres: 4 ms at HZ 250).
_TICKS = {"latency_p50_ms": 1, "latency_p99_ms": 3}
# figure -> (what it is, the aim for `monitor`, or None)
_ROWS: dict[str, tuple[str, float | None]] = {
    "latency_p50_ms": ("latency p50, ms", None),
    "latency_p99_ms": ("latency p99, ms", None),
    "latency_max_ms": ("latency max, ms", None),
    "latency_over_floor_p50_ms": ("later than the floor, p50, ms", None),
    "latency_over_floor_p99_ms": ("later than the floor, p99, ms", None),
    "processes": ("processes", 1),
    "pss_kib": ("memory (PSS), KiB", 8192),
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
# From here on the CPUs are not the bench's own and a missed aim may be the machine's.
_LOADED_PERCENT = 10


def aim(key: str, report: dict[str, Any]) -> float | None:
    """The most that a figure of `monitor` should be in this run."""
    if key in _TICKS:
        return float(_TICKS[key] * report["machine"]["tick_ms"])
    if key == "burst_cpu_us_line":
        return float(round(report["results"]["original"][key] / 3, 2))
    return _ROWS[key][1]


def table(report: dict[str, Any]) -> str:
    """The report as a text table with the aims; `!` marks an aim that was missed."""
    names = list(report["results"])
    lines = [f"{'':34}" + "".join(f"{name:>12}" for name in names) + f"{'aim':>10}"]
    for key, (title, _) in _ROWS.items():
        cells = "".join(f"{report['results'][name][key]:>12}" for name in names)
        most = aim(key, report)
        goal = "" if most is None else f"<= {most:g}"
        missed = most is not None and report["results"]["monitor"][key] > most
        lines.append(f"{title:34}{cells}{goal:>10}{' !' if missed else ''}")
    lines.append("")
    lines += [
        ", ".join(f"{key} {value}" for key, value in report[part].items())
        for part in ("machine", "lines")
    ]
    others = report["machine"]["others_cpu_percent"]
    if others >= _LOADED_PERCENT:
        lines.append(
            f"Others took {others} % of the CPUs meanwhile: times, and CPU per line with cold "
            "caches, are theirs too. The floor's, in the same run, show how much."
        )
    return "\n".join(lines)


def main() -> int:
    """`python -m kiln.bench_xid [IDLE_SECONDS [LINES_OF_A_BURST]]`."""
    idle_s, burst = [*map(float, sys.argv[1:3]), *(60.0, 10000.0)[len(sys.argv) - 1 :]]
    print(table(run(idle_s=idle_s, burst=int(burst))))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
