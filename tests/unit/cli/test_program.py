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
from kiln.cli import main, task
from tests.unit.records import a_record

pytestmark = pytest.mark.slow
FINDING = Finding("error", "DRV-1", "too old", rows=("al2",), file="amis.yaml", line=7)
FOUND = json.loads(json.dumps(FINDING.to_dict()))
# An error; what a person reads; what --json has beside it.
ERRORS: list[tuple[BaseException, str, dict[str, Any]]] = [
    (KilnError("wrong", hint="do"), "wrong\n  do\n", {"hint": "do", "exit_status": 2}),
    (KilnError("f.yaml:3:5: twice", place=Place("f.yaml", 3, 5)), "f.yaml:3:5: twice", {"line": 3}),
    (KilnError("no", findings=[FINDING]), "no\n", {"findings": [FOUND]}),
    (operation_failed("down"), "down\n", {"message": "down", "exit_status": 1}),
    (KeyboardInterrupt(), "interrupted\n", {"message": "interrupted", "exit_status": 1}),
    (OSError(errno.EACCES, "Denied", "/c"), "/c: Denied\n", {"exit_status": 1, "hint": ""}),
]


def run(line: str, capsys: pytest.CaptureFixture[str], body: Any = None) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of ./invoke, or of a task `look` that `body` makes."""
    known = task.Tasks(task.task("Matrix", "look")(body)) if body else tasks.ns
    status = main.run(["./invoke", *line.split()], known)
    return (status, *capsys.readouterr())


@pytest.mark.parametrize(("error", "says", "data"), ERRORS)
def test_error_is_one_message_and_a_line_of_json(
    error: BaseException,
    says: str,
    data: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def look() -> None:
        """Look."""
        raise error

    status, out, err = run("look", capsys, look)
    assert (out, err.startswith(f"error: {says}")) == ("", True)
    shown = json.loads(run("look --json", capsys, look)[1])["error"]
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

    assert run("look look --status 3 look --status 4", capsys, look)[:2] == (3, "0\n3\n")


# The command line; words of the message, and the task whose help it names.
REFUSED = [
    ("nightly al2", "unexpected word al2", "nightly"),
    ("telemetry.cost p5.48xlarge --instances=x", "--instances needs a whole number, not 'x'", ""),
    ("mig.plan p4d.24xlarge", "specify --want\n  ./invoke mig.plan INSTANCE_TYPE WANT", "mig.plan"),
    ("build --distro", "--distro needs a value", "build"),
    ("build --distor al2", "unknown flag --distor\n  did you mean '--distro'? See", "build"),
    ("--bogus", "unknown flag --bogus", ""),
    ("biuld", "unknown task biuld\n  did you mean 'build'? See", ""),
    ("sweep --run=", "--run is empty", ""),
]


@pytest.mark.parametrize(("line", "says", "help_of"), REFUSED)
def test_wrong_words_are_bad_input(
    line: str, says: str, help_of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(line, capsys)
    assert (status, err.count("error: ")) == (2, 1)
    assert says in err
    assert f"./invoke help {help_of}\n" in err or not help_of


def test_list_has_every_task_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run("--list", capsys)[1].splitlines()
    assert tuple(line for line in lines if line and not line.startswith(" ")) == task.GROUPS
    listed = {line.split()[0] for line in lines if line.startswith(" ")}
    assert listed == tasks.ns.tasks.keys()


@pytest.mark.parametrize("line", ["", "--help"])
def test_overview_names_tasks_that_exist(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = run(line, capsys)
    assert (status, len(text.splitlines()) <= 10) == (0, True)
    shown = re.findall(r"^  ./invoke ([\w.]+)", text, re.MULTILINE)
    assert shown and {*shown} <= {*tasks.ns.tasks, "help"}


@pytest.mark.parametrize("line", ["build --distro al2 --help", "help build"])
def test_help_has_subjects_examples_and_exit_status(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text, _ = run(line, capsys)
    titles = re.findall(r"^(\w[^:\n]*):", text, re.MULTILINE)
    assert titles == [
        *("Usage", "Select rows", "Target", "Machine", "If it fails", "AWS settings", "Lab only"),
        *("Output", "Examples", "Exit status"),
    ]
    known = {*re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)}
    for example in re.findall(r"^  \./invoke (.*)", text, re.MULTILINE):
        assert {word for word in example.split() if word.startswith("--")} <= known, example


def test_sigterm_ends_a_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look() -> None:
        """Look."""
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("sys.argv", ["./invoke", "look"])
    with pytest.raises(SystemExit) as ended:
        main.main(task.Tasks(task.task("Matrix", "look")(look)))
    assert (ended.value.code, capsys.readouterr().err) == (1, "error: interrupted\n")


# ------------------------------------------------------------- the whole program, by its script


def invoke(
    folder: Path, line: str, stdout: Any = subprocess.PIPE, **environment: str
) -> tuple[int, str, str]:
    done = subprocess.run(
        f"{ROOT}/invoke {line}",
        shell=True,
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_version_is_that_of_the_project(tmp_path: Path) -> None:
    (line,) = re.findall('^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert invoke(tmp_path, "--version") == (0, f"AMI Kiln {line}\n", "")


def test_bad_matrix_is_json_with_its_place(tmp_path: Path) -> None:
    matrix = tmp_path / "mine.yaml"
    matrix.write_text("defaults: {}\ndefaults: {}\n")
    status, out, _ = invoke(tmp_path, "check --json", KILN_MATRIX=str(matrix))
    error = json.loads(out)["error"]
    assert (error["file"], error["line"], error["column"], status) == (str(matrix), 2, 1, 2)


def test_path_means_where_the_caller_is(tmp_path: Path) -> None:
    (tmp_path / "kernel.log").write_text("NVRM: Xid (PCI:0000:00:1e): 79, pid=1\n")
    assert "Xid 79" in invoke(tmp_path, "xid.parse kernel.log")[1]
    folder = tmp_path / "mine" / "al2-510.47.03-cuda11.6-base-x86_64" / "20261121T000000Z-aaaa"
    folder.mkdir(parents=True)
    record = a_record(status="verified", ami_id="ami-0abc0abc")
    (folder / "record.json").write_text(json.dumps(record.to_dict()))
    assert "verified ami-0abc0abc" in invoke(tmp_path, "list", KILN_BUILD_DIR="mine")[1]


def test_c_locale_without_home_ends_no_task(tmp_path: Path) -> None:
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "HOME": "/nowhere"}
    status, _, err = invoke(tmp_path, "which --instance-type p5.48xlarge", **c_locale)
    assert (status, err) == (0, "")


def test_reader_that_ends_early_sees_no_traceback(tmp_path: Path) -> None:
    assert invoke(tmp_path, "list --json | head -c 1")[1:] == ("[", "")


@pytest.mark.parametrize("line", ["list", "--list"])
def test_full_disk_is_one_message(tmp_path: Path, line: str) -> None:
    with Path("/dev/full").open("w") as full:
        status, _, err = invoke(tmp_path, line, stdout=full)
    assert (status, err) == (1, "error: output: No space left on device\n")


def test_start_loads_no_large_library() -> None:
    heavy = {"boto3", "botocore", "moto", "jinja2", "rich", "hcl2", "pytest"}
    program = "import sys, kiln.cli.main, tasks; print(*sys.modules)"
    done = subprocess.run(
        [ROOT / ".venv/bin/python", "-c", program],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert heavy & set(done.stdout.split()) == set()
