"""A provisioner that fails: what the user reads. Each script is run by bash with the real library,
its output is told as Packer tells it, and the message is the one that ends the build."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from records import a_record
from test_provisioners import Machine

from kiln.base import overlay
from kiln.base.account import Account
from kiln.base.errors import KilnError
from kiln.cloud.network import Network
from kiln.matrix.load import load_recipes
from kiln.packer.process import Event
from kiln.pipeline import bake
from kiln.pipeline.bake import FailureReader
from kiln.pipeline.draft import ProvisionerError
from kiln.pipeline.plan import require_scripts
from kiln.pipeline.record import Failure
from kiln.pipeline.report import report_html
from lab.vendors.packages import system

HEAD = '#!/usr/bin/env bash\n\nsource "${KILN_DIR:?}/lib/kiln.sh"\n'


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "provisioners").mkdir()
    monkeypatch.setattr(overlay, "ROOT", tmp_path)
    monkeypatch.setattr(overlay, "PROVISIONERS", tmp_path / "provisioners")
    made = Machine(tmp_path)
    made.command("sleep", "")
    return made


def ended(machine: Machine, body: str) -> tuple[list[Event], int]:
    """The script sample.sh run as Packer runs it; its output as Packer's events, and its status."""
    (machine.root / "provisioners/sample.sh").write_text(HEAD + body)
    uploaded = machine.root / "script_4711.sh"
    uploaded.write_text(HEAD + body)
    done = subprocess.run(
        [machine.interpreter, str(uploaded)],
        env={**machine.environment, "TMPDIR": str(machine.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        # What hangs is a failure, and not a test run that never ends.
        timeout=120,
    )
    begun = Event(0, "say", "Provisioning with shell script: ../../provisioners/sample.sh")
    return [
        begun,
        *(Event(1, "message", line) for line in done.stdout.splitlines()),
    ], done.returncode


def read(events: list[Event], status: int) -> Failure:
    reader = FailureReader()
    for event in events:
        reader.read(event)
    for line in ("Provisioning step had errors: Running the cleanup provisioner, if present...",
                 "Terminating the source AWS instance..."):  # fmt: skip
        reader.read(Event(2, "say", line))
    words = f"Script exited with non-zero exit status: {status}. Allowed exit codes are: [0]"
    found = reader.failure(f"Build 'kiln.amazon-ebs.gpu' errored: {words}")
    assert found is not None
    return found


def message(machine: Machine, body: str) -> list[str]:
    events, status = ended(machine, body)
    assert status != 0
    error = ProvisionerError("row", read(events, status), log="build/row/run/packer.log")
    assert error.exit_status == 1
    lines = str(error).splitlines()
    assert lines[-1] == "  the whole log: build/row/run/packer.log"
    return lines[:-1]


def error_with(reader: FailureReader, *errors: str, hint: str = "") -> KilnError:
    """The error of a build whose Packer ended with these error lines."""
    hooks = SimpleNamespace(about_failure=lambda missing, recipe: ("the target's hint",))
    target = SimpleNamespace(hooks=hooks)
    plan = SimpleNamespace(recipe=SimpleNamespace(name="row"), account=Account(), target=target)
    run = SimpleNamespace(folder=Path("build/row/run"), id="run")
    output: Any = SimpleNamespace(plan=plan, draft=SimpleNamespace(run=run), reader=reader)
    result: Any = SimpleNamespace(errors=errors)
    return bake.error_of(output, result, hint)


@pytest.fixture(autouse=True)
def nothing_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bake.cleanup, "ended_by_ec2", lambda target, run_id: [])


NO_FILE = "  | ls: cannot access '/nonexistent': No such file or directory"
TABLE = {
    "command": (
        "echo begin\nfalse\necho never\n",
        "a command failed with status 1: false",
        ["line 5", "its last lines:", "  | begin"],
    ),
    "function": (
        "build() {\n    ls /nonexistent\n}\nbuild\n",
        "a command failed with status 2: ls /nonexistent",
        ["line 5", "its last lines:", NO_FILE],
    ),
    "pipe": (
        "printf a \\\n    | grep b \\\n    | sort\n",
        "a command in a pipe failed with status 1",
        ["line 6", "statuses of the pipe: 0 1 0"],
    ),
    "kiln_die": (
        'look() {\n    ls /nonexistent || kiln_die "no x" "make it"\n}\nx=$(look) || exit 1\n',
        "no x",
        ["line 5", "make it", "status: 2", "its last lines:", NO_FILE],
    ),
    "test": (
        '[[ -e /nonexistent ]] || kiln_die "no x"\n',
        "no x",
        ["line 4"],
    ),
}


@pytest.mark.parametrize("kind", TABLE)
def test_failure_names_component_line_and_words(machine: Machine, kind: str) -> None:
    body, what, (line, *more) = TABLE[kind]
    assert message(machine, body) == [
        f"row: packer build failed in sample: {what}",
        f"  provisioners/sample.sh {line}",
        *(f"  {text}" for text in more),
    ]


def test_failure_in_the_library_names_both_lines(machine: Machine) -> None:
    lines = message(machine, "tree=$(kiln_unpack /nonexistent.tar) || exit 1\n")
    assert lines[1] == "  provisioners/sample.sh line 4"
    assert re.search(r"\n  in: lib/downloads\.sh line \d+, kiln_unpack\n", "\n".join(lines))


@pytest.mark.parametrize("family", ["debian", "al"])
def test_a_package_that_no_repository_has_is_named_without_its_neighbours(
    machine: Machine, family: str
) -> None:
    al = Machine.__new__(Machine)
    al.__dict__.update(machine.__dict__)
    if family == "al":
        al.environment |= {"KILN_FAMILY": "al", "KILN_PACKAGE_MANAGER": "dnf"}
        al.command("rpm", "echo package is not installed; exit 1")
        al.command("dnf", '[[ $* == *" list gcc" || $* == *" list make" ]] && exit 0\n'
                   "echo 'Error: No matching Packages to list' >&2; exit 1")  # fmt: skip
    else:
        al.command("dpkg-query", "exit 1")
        al.command("apt-cache", '[[ $2 == chrony ]] || echo " $2 | 1 | y"')
        al.command("apt-get", "echo 'E: Unable to locate package chrony' >&2; exit 100")
    events, status = ended(al, "kiln_install gcc chrony make\n")
    found = read(events, status)
    assert found.missing == ["chrony"]
    assert found.message == "no repository has a package named chrony"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("echo begin\nhang\necho never\n", 5),
        ("build() {\n    hang || true\n}\nbuild || true\n", 7),
        ("x=$(hang) || exit 1\n", 4),
        ("echo a \\\n    | hang \\\n    | cat\n", 6),
        ("hang &\nwait\n", 5),
        ("while :; do :; done\n", 4),
    ],
)
def test_time_limit_ends_script_with_its_children(machine: Machine, body: str, line: int) -> None:
    machine.environment["KILN_TIME_LIMIT"] = "2s"
    machine.command("hang", f"{shutil.which('sleep')} 300 # {machine.root}")
    lines = message(machine, body)
    failed = "row: packer build failed in sample: it did not end within its time limit, 2s"
    assert lines[0] == failed
    assert lines[1] == f"  provisioners/sample.sh line {line}"
    assert "--time-limits sample=" in lines[2]
    assert left_of(machine) == []


def test_script_within_its_time_limit_succeeds(machine: Machine) -> None:
    machine.environment["KILN_TIME_LIMIT"] = "2h"
    events, status = ended(machine, "kiln_record version=1\necho done\n")
    assert (status, events[-1].text) == (0, "done")
    assert (machine.etc / "components/sample.json").exists()


def left_of(machine: Machine) -> list[str]:
    """The command lines of the script's processes that are still there after a while."""
    for _ in range(600):
        found = [
            line
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if str(machine.root) in (line := text_of(path))
        ]
        if not found:
            break
        time.sleep(0.1)
    return found


def text_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


CUT_OFF = (
    ("kernel", "Error uploading script: dial tcp 10.249.1.2:22: no route to host"),
    ("cuda", "Script exited with non-zero exit status: 137. Allowed exit codes are: [0]"),
    ("tuning", "Script disconnected unexpectedly."),
    ("efa", "Cancelling provisioner after a timeout..."),
)


@pytest.mark.parametrize("on_error", ["cleanup", "abort"])
@pytest.mark.parametrize(("component", "words"), CUT_OFF)
def test_script_cut_off_is_named_with_packers_words(
    component: str, words: str, on_error: str
) -> None:
    """As Packer 1.6.6 tells it."""
    steps = {
        "cleanup": [("say", "Provisioning step had errors: Running the cleanup provisioner")],
        "abort": [
            ("error", 'Step "StepProvision" failed, aborting...'),
            ("error", 'aborted: skipping cleanup of step "StepConnect"'),
        ],
    }
    reader = FailureReader()
    for kind, text in (
        ("say", f"Provisioning with shell script: x/provisioners/{component}.sh"),
        ("message", "Unpacking …"),
        *([("say", "Pausing 2s before the next provisioner...")] if component == "kernel" else []),
        *([("say", "Provisioning with shell script: /tmp/sh1")] if component == "kernel" else []),
        ("error", words),
        *steps[on_error],
        ("error", f"Build 'kiln' errored: {words}"),
    ):
        reader.read(Event(0, kind, text))
    found = reader.failure(f"Build 'kiln' errored: {words}")
    assert found is not None
    assert (found.component, found.message) == (component, f"Build 'kiln' errored: {words}")
    assert found.said[0] == "Unpacking …"
    assert not any("aborted" in line for line in found.said)


def test_a_component_that_worked_is_not_blamed_for_what_follows() -> None:
    reader = FailureReader()
    for kind, text in (
        ("say", "Provisioning with shell script: x/provisioners/hygiene.sh"),
        ("message", "kiln: hygiene: 20 checks passed"),
        ("say", "Stopping the source instance..."),
        ("say", "Creating AMI row from instance i-1"),
    ):
        reader.read(Event(0, kind, text))
    assert reader.failure("Error creating AMI: RequestLimitExceeded") is None
    assert FailureReader().failure("Timeout waiting for SSH.") is None


def test_what_fails_in_packers_own_clean_up_is_not_the_cause() -> None:
    """As Packer 1.6.6 ends when tags are refused, and then the AMI's removal too."""
    cause, last = "Error adding tags: UnauthorizedOperation", "Build 'kiln' errored: Error removing"
    reader = FailureReader()
    for text in (cause, "Error deregistering existing AMI", last):
        reader.read(Event(0, "error", text))
    assert reader.first_error == cause
    assert f"packer build failed: {cause}; {last}" in str(error_with(reader, last))


# ------------------------------------------------------------------- bash -n


@pytest.fixture
def broken_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copies = tmp_path / "provisioners"
    shutil.copytree(overlay.PROVISIONERS, copies, ignore=shutil.ignore_patterns("__pycache__"))
    script = copies / "cuda.sh"
    declared = [line for line in script.read_text().splitlines() if line.startswith("#@")]
    assert len(declared) == 3
    script.write_text("\n".join([*declared, HEAD]) + "if true; then\n    echo a\nfi fi\n")
    monkeypatch.setattr(overlay, "ROOT", tmp_path)
    monkeypatch.setattr(overlay, "PROVISIONERS", copies)
    return script


def test_a_build_is_refused_over_a_syntax_error_before_anything_is_launched(
    broken_cuda: Path,
) -> None:
    recipe = next(recipe for recipe in load_recipes() if "cuda" in recipe.components)
    with pytest.raises(KilnError, match=r"provisioners/cuda\.sh:9: error: shell-syntax"):
        require_scripts([recipe])


# ------------------------------------------------------------------- where it is kept


FOUND = Failure("cuda", "provisioners/cuda.sh", "no nvcc", 14, ("make it",), ("a < b",))


def test_the_report_shows_place_status_and_words() -> None:
    page = report_html(a_record(status="failed", error="no nvcc", failure=FOUND))
    assert "provisioners/cuda.sh line 14" in page
    assert "make it" in page
    assert "a &lt; b" in page


# ------------------------------------------------------------------- the lab's packages


def test_the_lab_says_that_it_is_the_lab_that_lacks_a_package_of_amazon_linux() -> None:
    distros = {recipe.distro.id: recipe.distro for recipe in load_recipes()}
    words = system.about_missing(("chrony",), distros["al2023"], "x86_64")
    assert words.startswith("the lab has no stand-in for chrony: it has ")
    words = system.about_missing(("chrony",), distros["debian12"], "x86_64")
    assert words.startswith("the lab passes on Debian 12's own repositories, so they do not have")


def test_a_components_seconds_last_to_the_next_one_with_its_reboot() -> None:
    reader = FailureReader()
    for seconds, kind, text in (
        (100, "say", "Waiting for SSH to become available..."),
        (110, "say", "Provisioning with shell script: x/provisioners/kernel.sh"),
        (120, "say", "Pausing 2s before the next provisioner..."),
        (125, "say", "Provisioning with shell script: /tmp/packer-shell1"),
        (130, "say", "Provisioning with shell script: x/provisioners/cuda.sh"),
        (150, "message", "kiln: cuda: installing"),
        (160, "say", "Stopping the source instance..."),
        (190, "say", "Creating AMI"),
    ):
        reader.read(Event(seconds, kind, text))
    assert reader.seconds() == {"kernel": 20.0, "cuda": 30.0}


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("public_ip", "internet gateway"),
        ("private_ip", "is this machine in that VPC"),
        ("session_manager", "has the parent AMI an SSM agent (Debian's have none)"),
    ],
)
def test_a_build_instance_that_does_not_answer_is_told_with_what_its_way_needs(
    way: str, words: str
) -> None:
    hint = Network((None,), "vpc-1", way, ()).hint
    assert words in str(error_with(FailureReader(), "Timeout waiting for SSH.", hint=hint))
    other = error_with(FailureReader(), "Error creating AMI: RequestLimitExceeded", hint=hint)
    assert words not in str(other)
