"""The command line: errors as one message and an exit status, paths as the caller means them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invoke import Context, Exit, Program

from kiln.base.errors import KilnError, Place, operation_failed
from kiln.base.findings import Finding
from kiln.base.paths import ROOT
from kiln.cli import front, xid
from tests.unit.records import a_record


def raising(error: BaseException) -> Callable[[], int]:
    def body() -> int:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (KilnError("wrong", hint="do this"), 2, "error: wrong\n  do this\n"),
        (operation_failed("down"), 1, "error: down\n"),
        (KeyboardInterrupt(), 1, "error: interrupted\n"),
        (OSError(errno.ENOSPC, "No space left", "/b"), 1, "error: the disk is full: /b\n"),
        (OSError(errno.EROFS, "Read-only file system", "/c"), 1, "error: /c: Read-only file sys"),
        (PermissionError(errno.EACCES, "Permission denied", "/d"), 1, "error: /d: Permission den"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/d"), 1, "error: /d: Not a direc"),
    ],
)
def test_what_ends_a_task_is_one_message_and_an_exit_status(
    error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.guarded(raising(error)) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(says)
    assert captured.out == ""


def test_who_is_not_root_is_told_of_sudo(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for number in (errno.EACCES, errno.EPERM):
        front.guarded(raising(PermissionError(number, "Permission denied", "/d")))
        assert "run it with sudo" in capsys.readouterr().err


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (1, 1)])
def test_what_a_task_returns_is_its_exit_status(result: int | None, code: int) -> None:
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


class Recorded(Program):
    """A Program whose steps only note that they were called."""

    STEPS = (
        "create_config",
        "parse_core",
        "parse_collection",
        "parse_tasks",
        "parse_cleanup",
        "update_config",
        "execute",
    )

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.called: list[str] = []
        for step in self.STEPS:
            setattr(self, step, lambda *_, step=step: self.called.append(step))


def test_the_steps_are_those_of_invokes_own_program(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[Recorded] = []

    def made(**options: Any) -> Recorded:
        programs.append(Recorded(**options))
        return programs[-1]

    monkeypatch.setattr(front, "WholeWords", made)
    assert front.run(["./invoke"]) == 0
    theirs = Recorded()
    theirs.run(["./invoke"])
    assert programs[0].called == theirs.called == list(Recorded.STEPS)


def test_arguments_mean_what_invoke_says_they_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        Program,
        "execute",
        lambda program: tasks.extend((task.name, task.as_kwargs) for task in program.tasks),
    )
    argv = ["./invoke", "--search-root", str(ROOT), "test", "-k", "bench", "lint"]
    assert front.run(argv) == 0
    (test, flags), (lint, _) = tasks
    assert (test, flags["k"], lint) == ("test", "bench", "lint")


@pytest.mark.parametrize("first", [["xid.explain", "79"], ["bench"]])
def test_no_task_takes_another_tasks_name_for_a_word_of_its_own(
    monkeypatch: pytest.MonkeyPatch, first: list[str]
) -> None:
    names: list[str] = []
    monkeypatch.setattr(
        Program,
        "execute",
        lambda program: names.extend(task.name for task in program.tasks),
    )
    assert front.run(["./invoke", "--search-root", str(ROOT), *first, "list"]) == 0
    assert names == [first[0], "list"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nightly", "al2"],
            "nightly does not take 'al2', and no task has that name\n  see ./invoke --help nightly",
        ),
        (
            ["lab.shell", "i-0123"],
            "lab.shell does not take 'i-0123', and no task has that name\n"
            "  see ./invoke --help lab.shell\n",
        ),
        (
            ["xid.explain", "79", "b.json"],
            "xid.explain does not take 'b.json', and no task has that name\n"
            "  see ./invoke --help xid.explain\n",
        ),
        (["list", "bench", "runX"], "bench does not take 'runX', and no task has that name\n"),
        (["bench", "xid"], "bench does not take 'xid', and no task has that name\n"),
        (["--list", "nothing"], "Sub-collection 'nothing' not found!\n  see ./invoke --list"),
        (["--list-depth", "many"], "--list-depth needs a whole number, not 'many'\n"),
        (
            ["telemetry.cost", "p5.48xlarge", "--instances", "x"],
            "--instances needs a whole number, not 'x'\n",
        ),
        (
            ["telemetry.cost", "p5.48xlarge", "--instances=x"],
            "--instances needs a whole number, not 'x'\n",
        ),
        (
            ["xid.explain"],
            "xid.explain needs --code: ./invoke xid.explain CODE\n"
            "  see ./invoke --help xid.explain\n",
        ),
        (
            ["mig.plan"],
            "mig.plan needs --instance-type and --want: ./invoke mig.plan INSTANCE_TYPE WANT\n",
        ),
        (["list", "--config", "x.txt"], "Config files of type 'txt'"),
        (["build", "--distro"], "--distro needs a value\n  see ./invoke --help build\n"),
        (["--list-format"], "--list-format needs a value\n"),
        (["list", "--bogus"], "unknown flag --bogus\n  see ./invoke --help list\n"),
        (["build", "--distor", "al2"], "unknown flag --distor; did you mean --distro?\n"),
        (["--bogus"], "unknown flag --bogus\n  see ./invoke --list"),
        (["nosuch"], "unknown task nosuch\n  see ./invoke --list"),
        (
            ["sbom", "--help"],
            "this task needs words, so --help goes before its name\n  see ./invoke",
        ),
        (["sbom", "--bogus"], "unknown flag --bogus\n  see ./invoke --list"),
        (["sbom", "--josn"], "unknown flag --josn; did you mean --json?\n"),
        (["biuld"], "unknown task biuld; did you mean build?\n  see ./invoke --list"),
        (["--help", "biuld"], "unknown task biuld; did you mean build?\n  see ./invoke --list"),
        (["lab"], "unknown task lab; its tasks are lab.clean, lab.down, "),
    ],
)
def test_arguments_that_invoke_refuses_are_bad_input(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.run(["./invoke", "--search-root", str(ROOT), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}")
    assert captured.out == ""


def test_a_refused_flag_is_json_for_a_program_that_asked_for_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert front.run(["./invoke", "--search-root", str(ROOT), "list", "--json", "--bogus"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"] == {
        "message": "unknown flag --bogus",
        "hint": "see ./invoke --help list",
        "exit_status": 2,
    }
    assert captured.err.startswith("error: unknown flag --bogus\n")


def test_the_errors_of_sbom_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run(["./invoke", "--search-root", str(ROOT), "sbom", "nosuch", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"].startswith("nosuch: no record of such a build")


FINDING = Finding("error", "DRV-1", "too old", rows=("al2",), file="amis.yaml", line=7)


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (
            KilnError("wrong", hint="do this"),
            {"message": "wrong", "hint": "do this", "exit_status": 2},
        ),
        (
            KilnError("f.yaml:3:5: twice", place=Place("f.yaml", 3, 5)),
            {
                **{"message": "f.yaml:3:5: twice", "hint": "", "exit_status": 2},
                **{"file": "f.yaml", "line": 3, "column": 5},
            },
        ),
        (
            KilnError("cannot work", findings=[FINDING]),
            {
                **{"message": "cannot work", "hint": "", "exit_status": 2},
                "findings": [FINDING.as_json()],
            },
        ),
        (operation_failed("down"), {"message": "down", "hint": "", "exit_status": 1}),
        (KeyboardInterrupt(), {"message": "interrupted", "hint": "", "exit_status": 1}),
        (
            OSError(errno.ENOSPC, "No space left", "/b"),
            {
                "message": "the disk is full: /b",
                "hint": "free some space and try again",
                "exit_status": 1,
            },
        ),
    ],
)
def test_with_json_an_error_is_a_line_of_json_as_well(
    error: BaseException, printed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    @front.task()
    def look(c: Context, json: bool = False) -> int:
        raise error

    statuses = []
    for arguments in ({}, {"json": True}):
        with pytest.raises(Exit) as ended:
            look(Context(), **arguments)
        statuses.append(ended.value.code)
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    assert json.loads(captured.out) == {"error": printed}
    assert statuses == [printed["exit_status"]] * 2
    first, second = captured.err[: len(captured.err) // 2], captured.err[len(captured.err) // 2 :]
    assert first == second
    assert first.startswith(f"error: {printed['message']}\n")


def test_a_bad_matrix_is_json_with_its_place(tmp_path: Path) -> None:
    matrix = tmp_path / "mine.yaml"
    matrix.write_text("defaults: {}\ndefaults: {}\n")
    done = invoke(tmp_path, "check", "--json", KILN_MATRIX=str(matrix))
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert (error["file"], error["line"], error["column"]) == (str(matrix), 2, 1)
    assert done.stderr.decode() == f"error: {error['message']}\n"


def test_sigterm_ends_a_task_as_ctrl_c_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["./invoke", "--search-root", str(ROOT), "list"])
    monkeypatch.setattr(Program, "execute", lambda _: signal.raise_signal(signal.SIGTERM))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as ended:
            front.main()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: interrupted\n"


def test_the_version_is_that_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[tool.x]\nversion = '9'\n[project]\nname = \"x\"\n  version='1.2.3' # \"4\"\n"
    (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.setattr("kiln.base.paths.ROOT", tmp_path)
    assert front.kiln_version() == "1.2.3"


def test_version_is_printed(tmp_path: Path) -> None:
    done = invoke(tmp_path, "--version")
    assert done.stdout.decode() == f"AMI Kiln {front.kiln_version()}\n"


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


def test_what_is_true_or_false_of_an_xid_is_yes_or_no_for_a_person() -> None:
    entry = {"kind": "xid", "code": 79, "name": "n", "eks_replaces_node": True, "fatal": False}
    assert xid.explained_text(entry).splitlines() == [
        "XID 79: n",
        "  eks replaces node  yes",
        "  fatal              no",
    ]


def test_a_log_without_an_event_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernel.log").write_text("[ 1.0] usb 1-1: new device\n")
    xid.print_events(str(tmp_path / "kernel.log"), as_json=False)
    assert capsys.readouterr().err.startswith("no Xid, no SXid and no lost GPU in ")
    (tmp_path / "kernel.log").write_text(
        "h kernel: message repeated 3 times: [ NVRM: Xid (PCI:0000:00:1e): 45, pid=0, name=x, Ch 1]"
    )
    xid.print_events(str(tmp_path / "kernel.log"), as_json=False)
    assert "pid 0 x (x3): " in capsys.readouterr().out
    (tmp_path / "kernel.log").write_text("other\n" + "h watcher: NVRM: Xid (PCI:00\n" * 2)
    xid.print_events(str(tmp_path / "kernel.log"), as_json=True)
    assert "left out 2 of the lines with an Xid or SXid, first in line 2" in capsys.readouterr().err


def test_a_process_name_in_a_log_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "kernel.log"
    log.write_text("NVRM: Xid (PCI:0000:00:1e): 79, pid=1, name=\x1b]0;x\x07, GPU has fallen off\n")
    xid.print_events(str(log), as_json=False)
    assert "\\x1b]0;x\\x07" in capsys.readouterr().out


def test_a_log_that_cannot_be_read_to_its_end_is_one_message(tmp_path: Path) -> None:
    done = invoke(tmp_path, "xid.parse", "/proc/self/mem")
    assert (done.returncode, done.stderr) == (1, b"error: /proc/self/mem: Input/output error\n")


def test_a_closed_standard_input_is_one_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(KilnError, match="standard input is closed"):
        xid.print_events("-", as_json=True)


def test_a_folder_in_the_environment_means_where_the_caller_is(tmp_path: Path) -> None:
    run = tmp_path / "mine" / "al2-510.47.03-cuda11.6-base-x86_64" / "20261121T000000Z-aaaa"
    run.mkdir(parents=True)
    record = a_record(status="verified", ami_id="ami-0abc0abc")
    (run / "record.json").write_text(json.dumps(record.as_json()))
    assert b"verified ami-0abc0abc" in invoke(tmp_path, "list", KILN_BUILD_DIR="mine").stdout


@pytest.mark.parametrize(
    "locale",
    [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}],
)
def test_a_locale_without_a_letter_ends_no_task(tmp_path: Path, locale: dict[str, str]) -> None:
    for task in (["which", "--instance-type", "p5.48xlarge"], ["--help", "build"], ["list"]):
        done = invoke(tmp_path, *task, **locale)
        assert done.returncode == 0, done.stderr
        assert done.stderr == b""


@pytest.mark.parametrize(
    ("pipe", "output"), [("list --json | head -c 1", b"["), ("xid.explain 79 | true", b"")]
)
def test_a_reader_that_ends_early_sees_no_traceback(
    tmp_path: Path, pipe: str, output: bytes
) -> None:
    done = subprocess.run(
        f"'{ROOT}/invoke' {pipe}",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (output, b"")


@pytest.mark.parametrize("task", [["list"], ["--list"], ["xid.explain", "79", "--json"]])
def test_output_that_cannot_be_written_is_one_message(tmp_path: Path, task: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [str(ROOT / "invoke"), *task],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    message = b"error: the disk is full: while writing\n  free some space and try again\n"
    assert (done.returncode, done.stderr) == (1, message)


def test_a_home_that_is_not_there_is_not_needed(tmp_path: Path) -> None:
    done = subprocess.run(
        ["env", "-u", "HOME", str(ROOT / "invoke"), "list"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
