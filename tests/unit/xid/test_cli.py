"""`gpu-xid` as a person meets it: commands, exit codes, one message for a mistake."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kiln.base import paths
from kiln.base.paths import LIBRARY, RUNTIME

pytestmark = pytest.mark.slow
PROGRAM = [
    sys.executable, "-ISB", "-c",
    f"import sys; sys.path.insert(0, {str(LIBRARY)!r}); "
    "from gpu_xid.__main__ import main; sys.exit(main(sys.argv[1:]))",
]  # fmt: skip
ROW = {
    "time": "2026-11-21T01:02:03.000000Z", "event": "xid", "xid": 79, "sxid": None, "gpu": None,
    "pci": "0000:3b:00", "severity": "fatal", "name": "GPU has fallen off the bus", "pid": None,
    "process": None,
}  # fmt: skip


def gpu_xid(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        input="", capture_output=True, text=True, check=False,
    )  # fmt: skip


def opened(pid: int) -> set[int]:
    """The inodes of the files that a process has open."""
    result = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            result.add(link.stat().st_ino)
    return result


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "not within a minute"
        time.sleep(0.02)


def test_tail_shows_newest_events_of_rotated_files(tmp_path: Path) -> None:
    path = tmp_path / "gpuevent.log"
    for number, place in enumerate(("gpuevent.log.10", "gpuevent.log.2", "gpuevent.log.1", "")):
        file = tmp_path / place if place else path
        file.write_text(json.dumps({**ROW, "pid": number, "process": "app", "count": 41}) + "\n")
    path.write_text(path.read_text() + '{"event": "start"}\n{"time": "20')
    (tmp_path / "gpuevent.log.bak").write_text(json.dumps(ROW) + "\n")
    shown = gpu_xid("tail", "-n", "3", "--log", str(path)).stdout.splitlines()
    assert shown[0] == (
        "2026-11-21T01:02:03.000000Z  Xid 79     fatal   0000:3b:00: GPU has fallen off the bus, "
        "app[1] (x41)"
    )
    assert [line.partition("app")[2] for line in shown[1:]] == ["[2] (x41)", "[3] (x41)"]


def test_tail_follows_over_a_rotation(tmp_path: Path) -> None:
    log, shown = tmp_path / "gpuevent.log", tmp_path / "shown"
    log.touch()

    def say(number: int) -> bool:
        with log.open("a") as file:
            file.write(json.dumps({**ROW, "pid": 1000 + number}) + "\n")
        return f"[{1000 + number}]" in shown.read_text()

    with shown.open("w") as out:
        tail = subprocess.Popen([*PROGRAM, "tail", "-f", "-n", "0", "--log", str(log)], stdout=out)
    try:
        until(lambda: say(0))  # it follows
        for number in range(1, 20):
            say(number)
            if number == 10:
                log.rename(tmp_path / "gpuevent.log.1")
                log.touch()
                until(lambda: log.stat().st_ino in opened(tail.pid))
        until(lambda: "[1019]" in shown.read_text())
    finally:
        tail.kill()
        tail.wait()
    text = shown.read_text()
    assert [number for number in range(20) if f"[{1000 + number}]" not in text] == []


def test_output_that_cannot_be_written_is_one_message() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*PROGRAM, "explain", "79"], stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "gpu-xid: [Errno 28] No space left on device\n"


def test_tail_passes_over_damaged_lines_and_control_codes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = json.dumps(ROW).encode() + b"\n"
    damaged = [b'{"event":"xid","time":"t"}', b"[1]", b"[" * 200000, b"\0" * 5000, b"x"]
    hostile = json.dumps({**ROW, "pid": 7, "process": "\x1b[2J\r\ud800ok\u202e"}).encode() + b"\n"
    path.write_bytes(whole + b"\n".join(damaged) + b"\n" + b"\0" * 9 + whole + hostile)
    done = gpu_xid("tail", "--log", str(path))
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 3)
    assert done.stdout.endswith("\\x1b[2J\\x0d\\xd800ok\\x202e[7]\n")


def test_explain_prints_meaning_action_and_sources() -> None:
    done = gpu_xid("explain", "48")
    for part in ("Xid 48: Double Bit ECC Error", "Action (AWS)", "Sources"):
        assert part in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["explain", "178"], 2, "nearest: Xid 175, Xid 176, Xid 177"),
        (["monitor", "--file", "/none"], 2, "monitor accepts --config"),
        (["tail", "--log", "/none"], 1, "No such file or directory: '/none'"),
    ],
)
def test_mistake_is_one_message(arguments: list[str], status: int, words: str) -> None:
    done = gpu_xid(*arguments)
    assert done.returncode == status
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_second_monitor_on_one_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(json.dumps({"log": str(tmp_path / "log")}))
    with (tmp_path / "log.position").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = gpu_xid("monitor", "--config", str(tmp_path / "config"))
    assert done.returncode == 1
    assert "another gpu-xid monitor" in done.stderr


def test_shipped_configuration_is_the_default_one() -> None:
    config = paths.runtime_module("gpu_xid.config")
    shipped = json.loads((RUNTIME / "etc/kiln/gpu-xid.json").read_text())
    assert config.check(shipped, "shipped") == config.check({}, "default")
    assert shipped["hooks"] == config.HOOK_DEFAULTS
