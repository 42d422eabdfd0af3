"""The front door: errors as one message and an exit code, paths as the caller means them."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from invoke import Context, Exit

from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import ROOT
from kiln.cli import front, offline


def raising(error: BaseException) -> Callable[[], int]:
    def body() -> int:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (KilnError("wrong", hint="mend it"), 2, "error: wrong\n  mend it\n"),
        (operation_failed("down"), 1, "error: down\n"),
        (KeyboardInterrupt(), 1, "error: interrupted\n"),
        (OSError(errno.ENOSPC, "No space left", "/b"), 1, "error: the disk is full: /b\n"),
        (OSError(errno.EROFS, "Read-only file system", "/c"), 1, "error: /c: Read-only file sys"),
        (PermissionError(errno.EACCES, "Permission denied", "/d"), 1, "error: /d: Permission den"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/d"), 1, "error: /d: Not a direc"),
    ],
)
def test_what_ends_a_task_is_one_message_and_an_exit_code(
    error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.guarded(raising(error)) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(says)
    assert captured.out == ""


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (1, 1)])
def test_what_a_task_returns_is_its_exit_code(result: int | None, code: int) -> None:
    assert front.guarded(lambda: result) == code


@pytest.mark.parametrize("value", ["", "  "])
def test_a_flag_with_nothing_in_it_is_bad_input(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @front.task()
    def look(c: Context, instance_type: str, name: str = "") -> int:
        return 0

    look(Context(), instance_type="p5.48xlarge", name="")
    with pytest.raises(Exit) as ended:
        look(Context(), instance_type=value)
    assert ended.value.code == 2
    assert "error: --instance-type is empty" in capsys.readouterr().err


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        front.guarded(lambda: 1 // 0)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["./invoke", "bench", "xid"], ["./invoke", "bench", "--what", "xid"]),
        (["./invoke", "lab.logs", "i-1"], ["./invoke", "lab.logs", "--instance", "i-1"]),
        (["./invoke", "lab.logs"], ["./invoke", "lab.logs"]),
        (["./invoke", "bench", "--json"], ["./invoke", "bench", "--json"]),
    ],
)
def test_a_word_may_stand_for_the_flag_that_may_be_left_out(
    given: list[str], meant: list[str]
) -> None:
    assert front._with_flag(given) == meant


def invoke(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(ROOT / "invoke"), *arguments],
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )


def test_a_path_means_where_the_caller_is(tmp_path: Path) -> None:
    (tmp_path / "kernel.log").write_text("NVRM: Xid (PCI:0000:00:1e): 79, pid=1\n")
    done = invoke(tmp_path, "xid.parse", "kernel.log")
    assert done.returncode == 0, done.stderr
    assert b"Xid 79" in done.stdout


def test_a_log_without_an_event_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernel.log").write_text("[ 1.0] usb 1-1: new device\n")
    assert offline.parse(str(tmp_path / "kernel.log"), as_json=False) == 0
    assert capsys.readouterr().err.startswith("no Xid and no SXid in ")
    (tmp_path / "kernel.log").write_text(
        "h kernel: message repeated 3 times: [ NVRM: Xid (PCI:0000:00:1e): 45, pid=0, name=x, Ch 1]"
    )
    offline.parse(str(tmp_path / "kernel.log"), as_json=False)
    assert "pid 0 x (x3): " in capsys.readouterr().out


def test_a_process_name_in_a_log_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "kernel.log"
    log.write_text("NVRM: Xid (PCI:0000:00:1e): 79, pid=1, name=\x1b]0;x\x07, GPU has fallen off\n")
    assert offline.parse(str(log), as_json=False) == 0
    assert "\\x1b]0;x\\x07" in capsys.readouterr().out


def test_a_log_that_cannot_be_read_to_its_end_is_one_message(tmp_path: Path) -> None:
    done = invoke(tmp_path, "xid.parse", "/proc/self/mem")
    assert (done.returncode, done.stderr) == (1, b"error: /proc/self/mem: Input/output error\n")


def test_a_closed_standard_input_is_one_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(KilnError, match="standard input is closed"):
        offline.parse("-", as_json=True)


def test_a_folder_in_the_environment_means_where_the_caller_is(tmp_path: Path) -> None:
    run = tmp_path / "mine" / "al2-510.47.03-cuda11.6-base-x86_64" / "20261121T000000Z-aaaa"
    run.mkdir(parents=True)
    (run / "record.json").write_text('{"status": "verified", "ami_id": "ami-0mine"}')
    assert b"verified ami-0mine" in invoke(tmp_path, "list", KILN_BUILD_DIR="mine").stdout


@pytest.mark.parametrize(
    "locale",
    [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}],
)
def test_a_locale_without_a_letter_ends_no_task(tmp_path: Path, locale: dict[str, str]) -> None:
    for task in (["which", "--instance-type", "p5.48xlarge"], ["--help", "build"], ["list"]):
        done = invoke(tmp_path, *task, **locale)
        assert done.returncode == 0, done.stderr
        assert done.stderr == b""


def test_a_reader_that_has_seen_enough_sees_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        f"'{ROOT}/invoke' list --json | head -c 1",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (b"[", b"")


def test_a_home_that_is_not_there_is_not_needed(tmp_path: Path) -> None:
    done = subprocess.run(
        ["env", "-u", "HOME", str(ROOT / "invoke"), "list"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
