"""The monitor's unit on a booted guest whose wall clock jumps.

The host's clock is everybody's, so libfaketime (Debian's package, preloaded into the unit for
this test only) moves what the program is told of CLOCK_REALTIME. CLOCK_MONOTONIC and the kernel's
timestamps stay real, as when somebody sets the clock.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
import xid_guest
from xid_guest import UNIT, Guest

pytestmark = xid_guest.NEEDS

LIBRARY = "usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
HOUR = 3600


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    package = xid_guest.from_debian("libfaketime", tmp_path_factory.mktemp("faketime"))
    with xid_guest.booted(tmp_path_factory.mktemp("xid")) as result:
        (result.root / "opt/libfaketime.so").write_bytes((package / LIBRARY).read_bytes())
        set_clock(result, 0)
        result.write(
            f"/etc/systemd/system/{UNIT}.d/clock.conf",
            "[Service]\n"
            "Environment=LD_PRELOAD=/opt/libfaketime.so FAKETIME_NO_CACHE=1\n"
            "Environment=FAKETIME_TIMESTAMP_FILE=/opt/clock FAKETIME_DONT_FAKE_MONOTONIC=1\n",
        )
        result.run("systemctl", "daemon-reload")
        result.run("systemctl", "restart", UNIT)
        yield result


def set_clock(guest: Guest, seconds: int) -> None:
    """Put the unit's wall clock so far ahead of the host's (or behind it), at once."""
    new = guest.root / "opt/clock.new"
    new.write_text(f"{seconds:+d}\n")
    new.rename(guest.root / "opt/clock")


def seconds(row: dict[str, str]) -> float:
    """UNIX seconds of a row's `time`."""
    stamp = datetime.strptime(row["time"], "%Y-%m-%dT%H:%M:%S.%fZ")
    return stamp.replace(tzinfo=timezone.utc).timestamp()


def test_a_clock_that_jumps_either_way_moves_the_times_and_loses_or_repeats_nothing(
    guest: Guest,
) -> None:
    written: dict[int, tuple[float, float]] = {}
    shift: dict[int, int] = {}

    def events(first: int, last: int, ahead: int) -> None:
        set_clock(guest, ahead)
        for pid in range(first, last + 1, 10):
            at = time.time()
            guest.xid(pid, pid + 9)
            written.update(dict.fromkeys(range(pid, pid + 10), (at, time.time())))
            shift.update(dict.fromkeys(range(pid, pid + 10), ahead))
        assert guest.until(lambda: len(guest.mine()) >= last)

    events(1, 30, 0)
    events(31, 60, 5 * HOUR)
    events(61, 90, -9 * HOUR)
    guest.run("kill", "-9", guest.show("MainPID"))  # and a crash, with the clock still wrong
    events(91, 120, -9 * HOUR)
    guest.run("systemctl", "restart", UNIT)
    events(121, 150, 0)
    rows = guest.mine()
    assert guest.pids() == Counter(range(1, 151))
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
    for row in rows:
        before, after = written[row["pid"]]
        assert before - 1 < seconds(row) - shift[row["pid"]] < after + 1, row


def test_the_clock_was_really_moved_for_the_program_and_only_the_wall_clock(guest: Guest) -> None:
    set_clock(guest, 5 * HOUR)
    before, monotonic_before = time.time(), time.monotonic()
    output = guest.run(
        "env", "LD_PRELOAD=/opt/libfaketime.so", "FAKETIME_NO_CACHE=1",
        "FAKETIME_TIMESTAMP_FILE=/opt/clock", "FAKETIME_DONT_FAKE_MONOTONIC=1",
        "python3", "-c", "import time; print(time.time(), time.clock_gettime(1))",
    )  # fmt: skip
    wall, monotonic = map(float, output.split())
    after, monotonic_after = time.time(), time.monotonic()
    assert before - 1 < wall - 5 * HOUR < after + 1
    assert monotonic_before < monotonic < monotonic_after
