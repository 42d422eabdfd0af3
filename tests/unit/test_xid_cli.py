"""`gpu-xid` as a person meets it: commands, exit codes, one message for a mistake."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kiln.base import paths
from kiln.base.paths import ROOT, RUNTIME
from kiln.xid import archive

LIBRARY = RUNTIME / "opt" / "kiln" / "lib"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=app, GPU has fallen off the bus."


PROGRAM = [
    sys.executable, "-ISB", "-c",
    f"import sys; sys.path.insert(0, {str(LIBRARY)!r}); "
    "from gpu_xid.__main__ import main; sys.exit(main(sys.argv[1:]))",
]  # fmt: skip


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
        time.sleep(0.05)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """An event log with a fatal Xid, a folded one, a start record and a torn line."""
    (rows,) = archive.events([f"2026-11-21T01:02:03Z h kernel: {XID}"])
    path = tmp_path / "gpuevent.log"
    path.write_text(
        json.dumps({"time": "2026-11-21T01:00:00.000000Z", "event": "start", "version": "1"})
        + "\n"
        + json.dumps(rows)
        + "\n"
        + json.dumps({**rows, "count": 41, "first_seq": 1})
        + '\n{"time": "20'
    )
    return path


def test_tail_shows_the_newest_events_for_people(log: Path) -> None:
    lines = gpu_xid("tail", "-n", "1", "--log", str(log)).stdout.splitlines()
    assert lines == [
        "2026-11-21T01:02:03.000000Z  Xid 79     fatal   0000:3b:00: GPU has fallen off the bus, "
        "app[7] (x41)"
    ]


def test_tail_follows_over_a_rotation_and_shows_what_the_old_file_got_last(
    log: Path, tmp_path: Path
) -> None:
    shown = tmp_path / "shown"
    row = json.loads(log.read_text().splitlines()[1])
    with shown.open("w") as out:
        tail = subprocess.Popen([*PROGRAM, "tail", "-f", "-n", "0", "--log", str(log)], stdout=out)
    try:
        until(lambda: log.stat().st_ino in opened(tail.pid))
        log.write_text(json.dumps(row) + "\n")
        for number in range(1, 40):
            with log.open("a") as file:
                file.write(json.dumps({**row, "pid": 1000 + number}) + "\n")
            if number % 10 == 0:
                log.rename(tmp_path / f"gpuevent.log.{number}")
                log.touch()
                until(lambda: log.stat().st_ino in opened(tail.pid))
        until(lambda: "[1039]" in shown.read_text())
    finally:
        tail.kill()
        tail.wait()
    text = shown.read_text()
    assert [number for number in range(11, 40) if f"[{1000 + number}]" not in text] == []


def test_output_that_cannot_be_written_is_one_message() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*PROGRAM, "explain", "79"], input="", stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "gpu-xid: [Errno 28] No space left on device\n"


ROW = {
    "time": "2026-11-21T01:02:03.000000Z", "event": "xid", "xid": 79, "sxid": None, "gpu": None,
    "pci": "0000:3b:00", "severity": "fatal", "name": "GPU has fallen off the bus", "pid": None,
    "process": None,
}  # fmt: skip


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = json.dumps(ROW).encode() + b"\n"
    damaged = [b'{"event":"xid","time":"t"}', b"[1]", b"[" * 200000, b"\0" * 5000, b"x"]
    path.write_bytes(whole + b"\n".join(damaged) + b"\n" + b"\0" * 9 + whole)
    done = gpu_xid("tail", "--log", str(path))
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 2)


def test_tail_goes_on_into_the_rotated_files(tmp_path: Path) -> None:
    path = tmp_path / "gpuevent.log"
    for number, place in enumerate(("gpuevent.log.10", "gpuevent.log.2", "gpuevent.log.1", "")):
        file = tmp_path / place if place else path
        file.write_text(json.dumps({**ROW, "pid": number}) + "\n")
    (tmp_path / "gpuevent.log.bak").write_text(json.dumps(ROW) + "\n")
    shown = gpu_xid("tail", "-n", "3", "--log", str(path)).stdout
    assert [line[-3:] for line in shown.splitlines()] == ["[1]", "[2]", "[3]"]


def test_process_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(json.dumps({**ROW, "pid": 7, "process": "\x1b[2J\r\ud800ok\u202e"}) + "\n")
    done = gpu_xid("tail", "--log", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\\x1b[2J\\x0d\\xd800ok\\x202e[7]\n")


def test_explain_prints_meaning_action_and_sources() -> None:
    done = gpu_xid("explain", "48")
    assert "Xid 48: Double Bit ECC Error" in done.stdout
    assert "Action (AWS)" in done.stdout
    assert "Sources" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["explain", "178"], 2, "nearest: Xid 175, Xid 176, Xid 177"),
        (["explain", "seven"], 2, "write 79, xid79 or sxid 12028"),
        (["monitor", "--file", "/none"], 2, "monitor accepts --config"),
        (["monitor", "--kmsg"], 2, "monitor accepts --config"),
        (["monitor", "more"], 2, "monitor accepts --config"),
        (["tail", "--log", "/none"], 1, "No such file or directory: '/none'"),
    ],
)
def test_mistake_is_one_message(arguments: list[str], status: int, words: str) -> None:
    done = gpu_xid(*arguments)
    assert done.returncode == status
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_shipped_configuration_is_the_default_one() -> None:
    config = paths.runtime_module("gpu_xid.config")
    shipped = json.loads((RUNTIME / "etc/kiln/gpu-xid.json").read_text())
    assert config.check(shipped, "shipped") == config.check({}, "default")
    assert shipped["hooks"] == config.HOOK_DEFAULTS


def test_documentation_names_every_key_of_a_line() -> None:
    event = paths.runtime_module("gpu_xid.event")
    page = (ROOT / "docs" / "telemetry-xid.md").read_text()
    for key in (*event._COMMON, *event._OPTIONAL):
        assert f"`{key}`" in page or f'"{key}"' in page, key


def test_monitor_imports_nothing_that_costs_memory() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(LIBRARY)!r}); import gpu_xid.monitor; "
        "print(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-ISB", "-c", program], capture_output=True, text=True, check=True
    )
    # 0.4 to 10 MiB each; json, signal and socket are worth theirs.
    heavy = {"subprocess", "logging", "argparse", "asyncio", "typing", "pathlib"}
    assert heavy & set(done.stdout.split()) == set()
