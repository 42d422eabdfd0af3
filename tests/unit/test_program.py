"""The command line: errors, exit statuses, help, and paths as the caller means them."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tasks
from kiln.base.errors import Finding, KilnError, Place, operation_failed
from kiln.base.paths import ROOT
from kiln.cli import gpu, main, task
from kiln.cli.options import Rows
from kiln.cli.output import FORMAT
from tests.unit.records import a_record

FINDING = Finding("error", "DRV-1", "too old", rows=("al2",), file="amis.yaml", line=7)
ERRORS: list[tuple[BaseException, str, dict[str, Any]]] = [
    (
        KilnError("wrong", hint="do this"),
        "wrong\n  do this\n",
        {"message": "wrong", "hint": "do this", "exit_status": 2},
    ),
    (
        KilnError("f.yaml:3:5: twice", place=Place("f.yaml", 3, 5)),
        "f.yaml:3:5: twice\n",
        {"message": "f.yaml:3:5: twice", "file": "f.yaml", "line": 3, "column": 5},
    ),
    (
        KilnError("cannot work", findings=[FINDING]),
        "cannot work\n",
        {"message": "cannot work", "findings": [FINDING.as_json()]},
    ),
    (operation_failed("down"), "down\n", {"message": "down", "exit_status": 1}),
    (KeyboardInterrupt(), "interrupted\n", {"message": "interrupted", "exit_status": 1}),
    (OSError(errno.EROFS, "Read-only file system", "/c"), "/c: Read-only file", {"exit_status": 1}),
    (PermissionError(errno.EACCES, "Permission denied", "/d"), "/d: Perm", {"exit_status": 1}),
]


def made(body: Any) -> task.Tasks:
    """A task `look` of a function."""
    return task.Tasks(task.task("Matrix", "look")(body))


@pytest.mark.parametrize(("error", "says", "data"), ERRORS)
def test_error_is_one_message_and_a_line_of_json(
    error: BaseException, says: str, data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def look() -> None:
        """Look."""
        raise error

    status = main.run(["./invoke", "look"], made(look))
    text = capsys.readouterr()
    assert (text.out, text.err.startswith(f"error: {says}")) == ("", True)
    assert main.run(["./invoke", "look", "--json"], made(look)) == status
    shown = json.loads(capsys.readouterr().out)["error"]
    assert shown["exit_status"] == status
    assert data.items() <= shown.items()


def test_task_result_is_the_exit_status_and_ends_the_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def look(status: int = 0) -> int:
        """Look.

        status: what it returns
        """
        print(status)
        return status

    argv = ["./invoke", "look", "look", "--status", "3", "look", "--status", "4"]
    assert main.run(argv, made(look)) == 3
    assert capsys.readouterr().out == "0\n3\n"


def test_person_who_is_not_root_is_told_of_sudo(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> None:
        """Look."""
        raise PermissionError(errno.EPERM, "Permission denied", "/d")

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main.run(["./invoke", "look"], made(look)) == 1
    assert "run it with sudo" in capsys.readouterr().err


def test_bug_is_a_traceback() -> None:
    def look() -> None:
        """Look."""
        _ = 1 // 0

    with pytest.raises(ZeroDivisionError):
        main.run(["./invoke", "look"], made(look))


def test_flags_of_a_class_reach_the_task_as_one_object() -> None:
    given: list[Any] = []

    def look(*, rows: Rows, words: list[str], out: str | None = None) -> None:
        """Look.

        words: some words
        out: a file
        """
        given.append((rows, words, out))

    argv = ["./invoke", "look", "--distro", "al2", "--words", "a", "--words", "b"]
    assert main.run(argv, made(look)) == 0
    assert given == [(Rows(distro="al2"), ["a", "b"], None)]


REFUSED = [
    (
        "nightly al2",
        "nightly does not take 'al2', and no task has that name\n  see ./invoke help nightly\n",
    ),
    ("lab.shell i-0123", "lab.shell does not take 'i-0123', and no task has"),
    ("list bench runX", "bench does not take 'runX', and no task has that name\n"),
    ("telemetry.cost p5.48xlarge --instances x", "--instances needs a whole number, not 'x'\n"),
    ("telemetry.cost p5.48xlarge --instances=x", "--instances needs a whole number, not 'x'\n"),
    ("xid.explain", "xid.explain needs --code: ./invoke xid.explain CODE\n  see ./invoke help"),
    (
        "mig.plan p4d.24xlarge",
        "mig.plan needs --want: ./invoke mig.plan INSTANCE_TYPE WANT\n",
    ),
    ("build --distro", "--distro needs a value\n  see ./invoke help build\n"),
    ("build --distro --driver 580", "--distro needs a value\n"),
    ("list --bogus", "unknown flag --bogus\n  see ./invoke help list\n"),
    ("build --distor al2", "unknown flag --distor; did you mean --distro?\n"),
    ("--bogus", "unknown flag --bogus\n  see ./invoke --list"),
    ("nosuch", "unknown task nosuch\n  see ./invoke --list"),
    ("sbom --josn", "unknown flag --josn; did you mean --json?\n"),
    ("biuld", "unknown task biuld; did you mean build?\n  see ./invoke --list"),
    ("--help biuld", "unknown task biuld; did you mean build?\n  see ./invoke --list"),
    ("sweep --run=", "--run is empty\n  give it a value, or leave it out\n"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_wrong_words_are_bad_input(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["./invoke", *line.split()], tasks.ns) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}")
    assert captured.out == ""


def test_no_task_takes_another_tasks_name_for_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["./invoke", "xid.explain", "79", "xid.explain", "48"], tasks.ns) == 0
    assert re.findall(r"XID (\d+)", capsys.readouterr().out) == ["79", "48"]


def test_list_has_eight_groups_of_short_imperatives(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["./invoke", "--list"], tasks.ns) == 0
    lines = capsys.readouterr().out.splitlines()
    assert tuple(line for line in lines if line and not line.startswith(" ")) == task.GROUPS
    listed = dict(line.strip().split(maxsplit=1) for line in lines if line.startswith(" "))
    assert listed.keys() == tasks.ns.tasks.keys()
    not_verbs = re.compile(r"(What|Which|Who|The|A|Tasks?|Does|Is)\b|\w+(s|ing|ed)\b(?<!Compress)")
    for name, text in listed.items():
        assert len(text) <= 60, (name, text)
        assert text[0].isupper() and text.endswith(".") and not not_verbs.match(text), (name, text)


@pytest.mark.parametrize("argv", [[], ["--help"], ["help"]])
def test_overview_has_ten_lines_with_tasks_that_exist(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["./invoke", *argv], tasks.ns) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 10
    shown = re.findall(r"^  ./invoke ([\w.]+)", text, re.MULTILINE)
    assert len(shown) == 5 and {*shown} <= {*tasks.ns.tasks, "help"}
    for page in re.findall(r"docs/[\w.-]+", text):
        assert (ROOT / page.rstrip(".")).is_file(), page


@pytest.mark.parametrize("argv", [["--help", "build"], ["build", "--help"], ["help", "build"]])
def test_help_has_flags_by_subject_examples_and_exit_statuses(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["./invoke", *argv], tasks.ns) == 0
    text = capsys.readouterr().out
    titles = re.findall(r"^(\w[^:\n]*):", text, re.MULTILINE)
    assert titles == [
        *("Usage", "Select rows", "Target", "Machine", "AWS settings", "If it fails", "Lab only"),
        *("Output", "Examples", "Exit status"),
    ]
    assert "Docstring" not in text and "core-opts" not in text
    for line in re.findall(r"^  \./invoke (.*)", text, re.MULTILINE):
        assert {word for word in line.split() if word.startswith("--")} <= {
            *re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)
        }, line


def test_help_of_a_task_with_words_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["help", "diff"], ["diff", "--help"]):
        assert main.run(["./invoke", *argv], tasks.ns) == 0
        assert capsys.readouterr().out.startswith("Usage: ./invoke diff A B [flags]\n")


def test_every_flag_has_help_and_no_help_is_of_another() -> None:
    for name, each in tasks.ns.tasks.items():
        flags = {argument.name for argument in each.get_arguments(ignore_unknown_help=True)}
        assert each.doc.helps.keys() == flags, name
        assert all(text for _, text in each.doc.helps.values()), name


def test_sigterm_ends_a_task_as_ctrl_c_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look() -> None:
        """Look."""
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("sys.argv", ["./invoke", "look"])
    with pytest.raises(SystemExit) as ended:
        main.main(made(look))
    assert (ended.value.code, capsys.readouterr().err) == (1, "error: interrupted\n")


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


def test_version_is_that_of_the_project(tmp_path: Path) -> None:
    (line,) = re.findall('^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert invoke(tmp_path, "--version").stdout.decode() == f"AMI Kiln {line}\n"


def test_bad_matrix_is_json_with_its_place(tmp_path: Path) -> None:
    matrix = tmp_path / "mine.yaml"
    matrix.write_text("defaults: {}\ndefaults: {}\n")
    done = invoke(tmp_path, "check", "--json", KILN_MATRIX=str(matrix))
    error = json.loads(done.stdout)["error"]
    assert (error["file"], error["line"], error["column"]) == (str(matrix), 2, 1)
    assert done.returncode == 2


def test_path_means_where_the_caller_is(tmp_path: Path) -> None:
    (tmp_path / "kernel.log").write_text("NVRM: Xid (PCI:0000:00:1e): 79, pid=1\n")
    done = invoke(tmp_path, "xid.parse", "kernel.log")
    assert done.returncode == 0, done.stderr
    assert b"Xid 79" in done.stdout


def test_folder_in_the_environment_means_where_the_caller_is(tmp_path: Path) -> None:
    run = tmp_path / "mine" / "al2-510.47.03-cuda11.6-base-x86_64" / "20261121T000000Z-aaaa"
    run.mkdir(parents=True)
    record = a_record(status="verified", ami_id="ami-0abc0abc")
    (run / "record.json").write_text(json.dumps(record.as_json()))
    assert b"verified ami-0abc0abc" in invoke(tmp_path, "list", KILN_BUILD_DIR="mine").stdout


@pytest.mark.parametrize(
    "locale",
    [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}],
)
def test_locale_without_a_letter_ends_no_task(tmp_path: Path, locale: dict[str, str]) -> None:
    for words in (["which", "--instance-type", "p5.48xlarge"], ["--help", "build"], ["list"]):
        done = invoke(tmp_path, *words, **locale)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("pipe", "output"), [("list --json | head -c 1", b"["), ("xid.explain 79 | true", b"")]
)
def test_reader_that_ends_early_sees_no_traceback(tmp_path: Path, pipe: str, output: bytes) -> None:
    done = subprocess.run(
        f"'{ROOT}/invoke' {pipe}", shell=True, cwd=tmp_path, capture_output=True, check=False
    )
    assert (done.stdout, done.stderr) == (output, b"")


@pytest.mark.parametrize("words", [["list"], ["--list"], ["xid.explain", "79", "--json"]])
def test_output_that_cannot_be_written_is_one_message(tmp_path: Path, words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [str(ROOT / "invoke"), *words],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"error: output: No space left on device\n")


def test_home_that_is_not_there_is_not_needed(tmp_path: Path) -> None:
    done = subprocess.run(
        ["env", "-u", "HOME", str(ROOT / "invoke"), "list"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


PARSED = [
    ("[ 1.0] usb 1-1: new device", "err", "no Xid, no SXid and no lost GPU in "),
    (
        "h kernel: message repeated 3 times: [ NVRM: Xid (PCI:0000:00:1e): 45, pid=0, name=x, Ch]",
        "out",
        "pid 0 x (x3): ",
    ),
    (
        "other\n" + "h watcher: NVRM: Xid (PCI:00\n" * 2,
        "err",
        "left out 2 of the lines with an Xid or SXid, first in line 2",
    ),
    # A process name cannot steer the terminal.
    ("NVRM: Xid (PCI:0000:00:1e): 79, pid=1, name=\x1b]0;x\x07, GPU", "out", "\\x1b]0;x\\x07"),
]


@pytest.mark.parametrize(("log", "stream", "says"), PARSED)
def test_kernel_log_is_read(
    log: str, stream: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernel.log").write_text(log)
    gpu.parse.body.__wrapped__(str(tmp_path / "kernel.log"))
    assert says in getattr(capsys.readouterr(), stream)


def test_log_that_cannot_be_read_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = invoke(tmp_path, "xid.parse", "/proc/self/mem")
    assert (done.returncode, done.stderr) == (1, b"error: /proc/self/mem: Input/output error\n")
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(KilnError, match="standard input is closed"):
        gpu.parse.body.__wrapped__("-")


def test_json_of_one_task_is_not_the_next_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["./invoke", "xid.explain", "79", "--json"], tasks.ns) == 0
    assert json.loads(capsys.readouterr().out)["code"] == 79
    assert main.run(["./invoke", "xid.explain", "79"], tasks.ns) == 0
    assert capsys.readouterr().out.startswith("XID 79: ")
    assert FORMAT.json is False
