"""A provisioner that fails: what the user reads. Each script is run by bash with the real library,
its output is told as Packer tells it, and the message is the one that ends the build."""

from __future__ import annotations

import os
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
from kiln.cloud.target import Target
from kiln.matrix.load import load_recipes
from kiln.packer import scripts
from kiln.packer.output import Event, parse_event
from kiln.pipeline import bake, build
from kiln.pipeline.bake import FailureReader
from kiln.pipeline.draft import ProvisionerError
from kiln.pipeline.plan import Options
from kiln.pipeline.record import Failure
from kiln.pipeline.report import report_html
from lab.packages import system

HEAD = '#!/usr/bin/env bash\nexport KILN_COMPONENT=sample\nsource "${KILN_DIR:?}/lib/kiln.sh"\n'


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "provisioners").mkdir()
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


def test_unbound_variable_shows_bashs_words(machine: Machine) -> None:
    lines = message(machine, 'cut() {\n    echo "$NOPE"\n}\n\ncut\n')
    assert lines[1] == "  provisioners/sample.sh line 8"
    assert "line 5: NOPE: unbound variable" in lines[-1]


def test_wrong_version_shows_what_there_is(machine: Machine) -> None:
    machine.command("apt-cache", "echo ' libnccl2 | 2.29.0-1+cuda13.0 | x'")
    machine.command("dpkg-query", "exit 1")
    lines = message(machine, "kiln_install_held libnccl2=2.28.9@cuda13.0\n")
    assert lines[0].endswith("in sample: no repository has libnccl2 2.28.9 built for cuda13.0")
    assert lines[1].endswith("sample.sh line 4")
    assert "  it offers: 2.29.0-1+cuda13.0" in lines


def test_the_package_tools_own_last_words_once_though_it_tried_three_times(
    machine: Machine,
) -> None:
    machine.command("apt-cache", "echo ' x | 1 | y'")
    machine.command("dpkg-query", "exit 1")
    machine.command("apt-get", "echo 'E: Unable to correct problems' >&2; exit 100")
    lines = message(machine, "kiln_install gcc make\n")
    assert lines[0].endswith("in sample: apt could not install gcc make")
    assert "does the repository still carry exactly these versions?" in lines[2]
    assert "".join(lines).count("E: Unable to correct problems") == 1


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


@pytest.fixture
def hanging(machine: Machine) -> Machine:
    """`hang` never ends, and the two hours of the limit are over when it runs."""
    real, hangs = shutil.which("sleep"), machine.root / "hangs"
    machine.environment["KILN_TIME_LIMIT"] = "2h"
    machine.command("hang", f"touch {hangs}; exec {real} infinity")
    machine.command(
        "sleep",
        f"[[ $1 != 2h ]] || until [[ -e {hangs} ]]; do {real} 0.05; done\nexec {real} 0.3",
    )
    return machine


LONGER = (
    "  if it only needs longer: --time-limits sample=4h, or in amis.yaml "
    "aws: {time_limits: {sample: 4h}}"
)


def test_a_script_that_hangs_names_the_command_its_limit_and_how_to_give_it_longer(
    hanging: Machine,
) -> None:
    assert message(hanging, "echo begin\nhang --now\necho never\n")[:6] == [
        "row: packer build failed in sample: it did not end within its time limit, 2h",
        "  provisioners/sample.sh line 5",
        f"  what ran then: {shutil.which('sleep')} infinity",
        LONGER,
        "  its last lines:",
        "    | begin",
    ]


BY_ITS_COMMAND = pytest.mark.skipif(
    "KILN_TEST_BASH" in os.environ,
    reason="a trap of bash 4.2 does not know the command: the line is that of the call",
)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("build() {\n    hang\n}\nbuild\n", "line 5"),
        pytest.param(
            "build() {\n    hang || true\n}\nbuild || true\n",
            "line 5",
            marks=BY_ITS_COMMAND,
        ),
        ("build() {\n    hang\n    hang\n}\nbuild || true\n", "line 8"),
        ("x=$(hang) || exit 1\n", "line 4"),
        ("echo a \\\n    | hang \\\n    | cat\n", "line 6"),
        ("hang &\nwait\n", "line 5"),
        ("hang &\nwhile :; do :; done\n", "line 5"),
    ],
)
def test_a_command_that_hangs_is_named_with_its_line_wherever_it_stands(
    hanging: Machine, body: str, place: str
) -> None:
    lines = message(hanging, body)
    assert lines[1] == f"  provisioners/sample.sh {place}"
    assert lines[2:4] == [f"  what ran then: {shutil.which('sleep')} infinity", LONGER]


def test_a_package_tool_that_hangs_is_not_tried_again(hanging: Machine) -> None:
    hanging.command("apt-get", "echo asked; exec hang")
    lines = message(hanging, 'kiln_pm update || kiln_die "no lists"\n')
    assert lines[0].endswith(": it did not end within its time limit, 2h")
    assert lines[1].endswith("sample.sh line 4")
    assert "".join(lines).count("asked") == 1


@BY_ITS_COMMAND
def test_a_command_of_the_library_that_hangs_names_both_lines(hanging: Machine) -> None:
    hanging.command("systemctl", "exec hang")
    lines = message(hanging, "start() {\n    kiln_enable x.service\n}\nstart\n")
    assert lines[1].endswith("sample.sh line 5")
    assert any(re.fullmatch(r"  in: lib/image\.sh line \d+, kiln_enable", text) for text in lines)


def test_what_does_not_end_by_itself_is_killed(hanging: Machine) -> None:
    hanging.command(
        "hang", f"trap '' TERM\ntouch {hanging.root}/hangs\nwhile true; do /bin/sleep 1; done"
    )
    assert message(hanging, "hang\n")[1].endswith("sample.sh line 4")
    assert left_of(hanging) == []


def test_of_a_script_that_ends_in_time_nothing_goes_on(hanging: Machine) -> None:
    events, status = ended(hanging, "wait\necho done\n")
    assert (status, events[-1].text) == (0, "done")
    assert left_of(hanging) == []


def test_a_daemon_that_keeps_the_output_open_is_named_and_ended(machine: Machine) -> None:
    real = shutil.which("sleep")
    assert message(machine, f"{real} 300 &\necho started\n") == [
        "row: packer build failed in sample: it ended, but a process that it started still has its "
        "output open, so SSH would wait",
        "  provisioners/sample.sh",
        f"  what ran then: {real} 300",
        "  make it a unit, or start it with </dev/null >/dev/null 2>&1",
        "  its last lines:",
        "    | started",
    ]


def test_a_daemon_in_a_session_of_its_own_is_found_too(machine: Machine) -> None:
    real = shutil.which("sleep")
    lines = message(machine, f"(setsid {real} 300 &)\n")
    assert f"  what ran then: {real} 300" in lines


def test_a_script_that_fails_beside_a_daemon_tells_its_own_failure(machine: Machine) -> None:
    lines = message(machine, f"{shutil.which('sleep')} 300 &\nfalse\n")
    assert lines[0].endswith("in sample: a command failed with status 1: false")
    assert not any("what ran then" in line for line in lines)


@pytest.mark.parametrize(
    "body",
    [
        "exec > >(tee $TMPDIR/log)\necho done\n",
        "exec > >(tee $TMPDIR/log) 2>&1\necho done\n",
        "command -p sleep 2 </dev/null >/dev/null 2>&1 &\necho done\n",
        "hang=$(command -p sleep 0.2 &) || exit 1\necho done\n",
    ],
)
def test_what_ends_with_the_script_or_has_let_go_of_its_output_is_no_failure(
    machine: Machine, body: str
) -> None:
    events, status = ended(machine, body)
    assert (status, events[-1].text) == (0, "done")


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


def test_a_signal_that_somebody_else_sends_is_no_time_limit(hanging: Machine) -> None:
    lines = message(hanging, "kill $$\ntrue\n")
    assert "in sample: the script ended with status 143: " in lines[0]


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
    monkeypatch.setattr(overlay, "PROVISIONERS", copies)
    return script


def test_a_syntax_error_is_a_finding_with_file_line_and_bashs_words(broken_cuda: Path) -> None:
    (finding,) = scripts.check_scripts(["cuda", "efa"])
    assert str(finding).startswith(
        "provisioners/cuda.sh:9: error: shell-syntax: syntax error near unexpected token `fi': "
    )


def test_an_error_over_which_bash_ends_well_is_a_finding_too(broken_cuda: Path) -> None:
    """`bash -n` says what is wrong with an unclosed [[, and exits with 0."""
    lines = broken_cuda.read_text().splitlines()[:-3]
    broken_cuda.write_text("\n".join([*lines, "if [[ -e /x ]; then", "    echo a", "fi", ""]))
    (finding,) = scripts.check_scripts(["cuda", "efa"])
    assert "conditional expression" in finding.message
    assert finding.line == len(lines) + 1


def test_a_build_is_refused_over_a_syntax_error_before_anything_is_launched(
    broken_cuda: Path,
) -> None:
    recipe = next(recipe for recipe in load_recipes() if "cuda" in recipe.components)
    with pytest.raises(KilnError, match=r"provisioners/cuda\.sh:9: error: shell-syntax"):
        build.dry_run([recipe], Options(), Target("a test"))


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


def test_lines_of_packers_log_are_read_as_they_come() -> None:
    reader = FailureReader()
    for line in (
        "1,,ui,say,==> kiln.amazon-ebs.gpu: Provisioning with shell script: a/provisioners/efa.sh",
        "2,,ui,error,==> kiln.amazon-ebs.gpu: kiln: efa: ERROR: it%!(PACKER_COMMA) broke",
        "2,,ui,error,==> kiln.amazon-ebs.gpu: kiln: efa:   at: efa.sh line 1",
    ):
        event = parse_event(line)
        assert event
        reader.read(event)
    found = reader.failure("")
    assert found is not None
    assert (found.message, found.line) == ("it, broke", 1)


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


def test_failure_ends_with_the_targets_hint_and_the_log() -> None:
    reader = FailureReader()
    reader.read(Event(0, "say", "Provisioning with shell script: x/provisioners/cuda.sh"))
    lines = str(error_with(reader, "Script exited")).splitlines()
    assert lines[-2:] == ["  the target's hint", "  the whole log: build/row/run/packer.log"]


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
