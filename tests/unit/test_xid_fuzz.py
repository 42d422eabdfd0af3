"""Whatever a kernel log, an archive or a process name holds: no crash, no hang, bounded memory.

`python tests/unit/test_xid_fuzz.py 1000000` runs the mutator over so many lines and prints the
figures; the tests run it briefly.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kiln.base import paths
from kiln.xid import archive

kmsg = paths.runtime_module("gpu_xid.kmsg")
parse = paths.runtime_module("gpu_xid.parse")
monitor = paths.runtime_module("gpu_xid.monitor")
checkpoint = paths.runtime_module("gpu_xid.checkpoint")
config = paths.runtime_module("gpu_xid.config")

CORPUS = Path(__file__).parents[1] / "data" / "xid" / "lines.jsonl"
LINES = [json.loads(line)["line"] for line in CORPUS.read_text().splitlines()]
PIECES = [
    "NVRM: Xid (",
    "PCI:",
    "0000:3b:00",
    "): ",
    "79",
    ", ",
    "pid=",
    "name=",
    "'<unknown>'",
    "nvidia-nvswitch0: SXid (",
    "Fatal",
    "Link ",
    "Data {",
    "\\x0a",
    "\\x",
    "\n",
    "\x00",
    "GPU-I:",
    " caused by previous Xid ",
    "9" * 40,
    "é",
    "\ud7ff",
    "[",
    "]",
    "0x",
    '{"log":"',
    '{"event":"xid","raw":"',
    '"MESSAGE" : "',
    '"}',
    "message repeated 3 times: [ ",
    ";",
    ",",
]


class Log:
    """Counts what the monitor writes and checks that each line is one JSON object."""

    path, error, retry_at = "/dev/null", None, None

    def __init__(self) -> None:
        self.lines = 0

    def add(self, line: bytes, sync: bool = False, events: int = 1) -> None:
        self.lines += 1
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        if self.lines % 97 == 0:
            assert json.loads(line)["event"] != "unhandled"

    def flush(self) -> bool:
        return True


def mutate(rng: random.Random, line: str) -> str:
    """A line of the corpus with something cut, doubled, swapped or put in."""
    for _ in range(rng.randint(1, 4)):
        at, end = sorted((rng.randrange(len(line) + 1), rng.randrange(len(line) + 1)))
        match rng.randrange(6):
            case 0:
                line = line[:at] + line[end:]
            case 1:
                line = line[:end] + line[at:end] + line[end:]
            case 2:
                line = line[:at] + rng.choice(PIECES) + line[at:]
            case 3:
                line = line[:at] + chr(rng.randrange(0, 0x2FF)) + line[at + 1 :]
            case 4:
                other = rng.choice(LINES)
                line = line[:at] + other[rng.randrange(len(other) + 1) :]
            case _:
                line = line[:at] + str(rng.randrange(10**6)) + line[at:]
    return line[:4000]


def mutated(count: int, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(count):
        yield mutate(rng, rng.choice(LINES))


def run_all(count: int, seed: int) -> tuple[int, int]:
    """Every mutated line through the daemon's path and the archive's. (log lines, events)."""
    lines = monitor.Monitor(
        config.check({"fold_window_s": 0}, "fuzz"),
        kmsg.KmsgReader("/dev/null"),
        checkpoint.PositionFile("/nonexistent/position"),
    )
    lines.log = log = Log()

    def feed() -> Iterator[str]:
        for number, text in enumerate(mutated(count, seed)):
            raw = text.encode("utf-8", "replace").replace(b"\n", b"\\x0a")
            record = b"%d,%d,%d,-;%s\n" % (number % 20, number, number * 50, raw)
            lines._take(record.decode("utf-8", "replace"))
            if number % 1000 == 999:
                lines.work()
            yield text

    result = sum(1 for _ in archive.events(feed()))
    lines.work()
    lines._release(float("inf"))  # those that wait behind an SXid for its details
    return log.lines, result


def test_mutated_corpus_lines_never_crash_and_still_give_events() -> None:
    written, result = run_all(5000, seed=20261121)
    assert written > 500
    assert result > 500


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=60), st.sampled_from(PIECES + LINES)), max_size=8))
def test_any_text_is_parsed_or_refused(parts: list[str]) -> None:
    text = "".join(parts)
    list(archive.events([text]))
    fields = parse.parse_message(text)
    if fields is not None and fields["kind"] in ("xid", "sxid"):
        assert isinstance(fields[fields["kind"]], int)
        assert fields["pci"] == parse.pci_address(fields["pci"])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_after_a_kmsg_header_are_a_text(raw: bytes) -> None:
    assert isinstance(kmsg.decode((b"4,1,2,-;" + raw).decode("utf-8", "replace"))[3], str)


@settings(max_examples=200, deadline=None)
@given(
    st.text(min_size=1, max_size=15).filter(lambda name: not name.startswith("'")),
    st.integers(0, 2**22),
)
def test_a_hostile_process_name_changes_neither_code_nor_address(name: str, pid: int) -> None:
    text = f"NVRM: Xid (PCI:0000:3b:00): 31, pid={pid}, name={name}, Ch 00000008"
    fields = parse.parse_message(text)
    assert (fields["xid"], fields["pci"], fields["pid"]) == (31, "0000:3b:00", pid)


def main() -> None:
    count = int(sys.argv[1])
    start = time.monotonic()
    written, result = run_all(count, seed=int(time.time()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{count} lines in {time.monotonic() - start:.0f} s: {written} log lines, "
        f"{result} archive events, peak memory {peak} MiB"
    )


if __name__ == "__main__":
    main()
