"""A provisioner that fails: what the user reads. Each script is run by bash with the real library,
its output is told as Packer tells it, and the message is the one that ends the build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
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
from kiln.packer import scripts
from kiln.packer.output import Event, parse_event
from kiln.pipeline import bake, build_row
from kiln.pipeline.failure import Failure, FailureReader, ProvisionerError, about_proxy
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


def test_a_plain_command_that_fails(machine: Machine) -> None:
    assert message(machine, "echo begin\nfalse\necho never\n") == [
        "row: packer build failed in sample: a command failed with status 1: false",
        "  provisioners/sample.sh line 5: false",
        "  exit status 1",
        "  its last words:",
        "    | begin",
    ]


def test_a_command_in_a_function_of_the_script(machine: Machine) -> None:
    lines = message(machine, "build() {\n    ls /nonexistent\n}\nbuild\n")
    assert "  provisioners/sample.sh line 5: ls /nonexistent" in lines
    assert "    | ls: cannot access '/nonexistent': No such file or directory" in lines


def test_a_pipe_names_the_command_that_failed_and_not_its_last_one(machine: Machine) -> None:
    assert message(machine, "printf a \\\n    | grep b \\\n    | sort\n")[:3] == [
        "row: packer build failed in sample: a command in a pipe failed with status 1",
        "  provisioners/sample.sh line 6: printf a | grep b | sort",
        "  exit status 1, statuses of the pipe 0 1 0: grep b",
    ]


def test_a_pipe_whose_last_command_failed_too_names_both(machine: Machine) -> None:
    lines = message(machine, "grep a </dev/null | grep b\n")
    assert lines[0].endswith("a command failed with status 1: grep b")
    assert lines[2] == "  exit status 1, statuses of the pipe 1 1: grep a </dev/null; grep b"


def test_a_pipe_in_a_larger_statement_is_shown_with_its_statuses_alone(machine: Machine) -> None:
    lines = message(machine, "printf a | grep b | sort || false | true\n")
    assert lines[2] == "  exit status 1, statuses of the pipe 1 0"


def test_kiln_die_says_its_hint_and_the_line_that_led_there(machine: Machine) -> None:
    body = 'look() {\n    ls /nonexistent || kiln_die "x cannot be listed" "make it first"\n}\n'
    assert message(machine, f"{body}x=$(look) || exit 1\n") == [
        "row: packer build failed in sample: x cannot be listed",
        '  provisioners/sample.sh line 5: ls /nonexistent || kiln_die "x cannot be listed" '
        '"make it first"',
        "  exit status 2",
        "  its last words:",
        "    | ls: cannot access '/nonexistent': No such file or directory",
        "  make it first",
    ]  # fmt: skip


def test_the_words_of_a_scripts_own_error_decide_nothing(machine: Machine) -> None:
    """The status of a test says nothing, though the message begins as the library's own do."""
    assert message(machine, '[[ -e /nonexistent ]] || kiln_die "a command failed"\n') == [
        "row: packer build failed in sample: a command failed",
        '  provisioners/sample.sh line 4: [[ -e /nonexistent ]] || kiln_die "a command failed"',
    ]


def test_a_failure_in_the_library_names_both_lines(machine: Machine) -> None:
    lines = message(machine, "tree=$(kiln_unpack /nonexistent.tar) || exit 1\n")
    assert (
        lines[1]
        == "  provisioners/sample.sh line 4: tree=$(kiln_unpack /nonexistent.tar) || exit 1"
    )
    assert re.fullmatch(
        r"  in provisioners/lib/downloads\.sh line \d+, kiln_unpack, exit status 2", lines[2]
    )


def test_an_unbound_variable(machine: Machine) -> None:
    assert message(machine, 'cut() {\n    echo "$NOPE"\n}\n\ncut\n') == [
        'row: packer build failed in sample: the script ended with status 1: echo "$NOPE"',
        "  provisioners/sample.sh line 8: cut",
        "  exit status 1",
        "  its last words:",
        "    | provisioners/sample.sh line 5: NOPE: unbound variable",
        "  nothing sets that variable: declare it in the script's header (#@ env), and let its "
        "component give it",
    ]


def test_a_wrong_version_shows_what_there_is(machine: Machine) -> None:
    machine.command("apt-cache", "echo ' libnccl2 | 2.29.0-1+cuda13.0 | x'")
    machine.command("dpkg-query", "exit 1")
    lines = message(machine, "kiln_install_held libnccl2=2.28.9@cuda13.0\n")
    assert lines[0].endswith("in sample: no repository has libnccl2 2.28.9 built for cuda13.0")
    assert lines[1].endswith("line 4: kiln_install_held libnccl2=2.28.9@cuda13.0")
    assert lines[-1] == "  it offers: 2.29.0-1+cuda13.0"


def test_the_package_tools_own_last_words_once_though_it_tried_three_times(
    machine: Machine,
) -> None:
    machine.command("apt-cache", "echo ' x | 1 | y'")
    machine.command("dpkg-query", "exit 1")
    machine.command("apt-get", "echo 'E: Unable to correct problems' >&2; exit 100")
    lines = message(machine, "kiln_install gcc make\n")
    assert lines[0].endswith("in sample: apt could not install gcc make")
    assert "exit status 100" in lines[2]
    assert lines[3:5] == ["  its last words:", "    | E: Unable to correct problems"]
    assert "does the repository still carry exactly these versions?" in lines[-1]


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
    assert found.missing == ("chrony",)
    assert found.message == "no repository has a package named chrony"


def test_a_time_limit(machine: Machine) -> None:
    (machine.bin / "sleep").unlink()
    lines = message(machine, "timeout 0.01 sleep 5\n")
    assert lines[1:] == [
        "  provisioners/sample.sh line 4: timeout 0.01 sleep 5",
        "  exit status 124",
        "  the command ran into its time limit",
    ]


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
    assert message(hanging, "echo begin\nhang --now\necho never\n") == [
        "row: packer build failed in sample: it did not end within its time limit, 2h",
        "  provisioners/sample.sh line 5: hang --now",
        "  its last words:",
        "    | begin",
        f"  what ran then: {shutil.which('sleep')} infinity",
        LONGER,
    ]


BY_ITS_COMMAND = pytest.mark.skipif(
    "KILN_TEST_BASH" in os.environ,
    reason="a trap of bash 4.2 does not know the command: the line is that of the call",
)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("build() {\n    hang\n}\nbuild\n", "line 5: hang"),
        pytest.param(
            "build() {\n    hang || true\n}\nbuild || true\n",
            "line 5: hang || true",
            marks=BY_ITS_COMMAND,
        ),
        ("build() {\n    hang\n    hang\n}\nbuild || true\n", "line 8: build || true"),
        ("x=$(hang) || exit 1\n", "line 4: x=$(hang) || exit 1"),
        ("echo a \\\n    | hang \\\n    | cat\n", "line 6: echo a | hang | cat"),
        ("hang &\nwait\n", "line 5: wait"),
        ("hang &\nwhile :; do :; done\n", "line 5: while :; do :; done"),
    ],
)
def test_a_command_that_hangs_is_named_with_its_line_wherever_it_stands(
    hanging: Machine, body: str, place: str
) -> None:
    lines = message(hanging, body)
    assert lines[1] == f"  provisioners/sample.sh {place}"
    assert lines[-2:] == [f"  what ran then: {shutil.which('sleep')} infinity", LONGER]


def test_a_package_tool_that_hangs_is_not_tried_again(hanging: Machine) -> None:
    hanging.command("apt-get", "echo asked; exec hang")
    lines = message(hanging, 'kiln_pm update || kiln_die "no lists"\n')
    assert lines[0].endswith(": it did not end within its time limit, 2h")
    assert lines[1].endswith('sample.sh line 4: kiln_pm update || kiln_die "no lists"')
    assert "".join(lines).count("asked") == 1


@BY_ITS_COMMAND
def test_a_command_of_the_library_that_hangs_names_both_lines(hanging: Machine) -> None:
    hanging.command("systemctl", "exec hang")
    lines = message(hanging, "start() {\n    kiln_enable x.service\n}\nstart\n")
    assert lines[1].endswith("sample.sh line 5: kiln_enable x.service")
    assert re.fullmatch(r"  in provisioners/lib/image\.sh line \d+, kiln_enable", lines[2])


def test_what_does_not_end_by_itself_is_killed(hanging: Machine) -> None:
    hanging.command(
        "hang", f"trap '' TERM\ntouch {hanging.root}/hangs\nwhile true; do /bin/sleep 1; done"
    )
    assert message(hanging, "hang\n")[1].endswith("sample.sh line 4: hang")
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
        "  its last words:",
        "    | started",
        f"  what ran then: {real} 300",
        "  make it a unit, or start it with </dev/null >/dev/null 2>&1",
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


def test_a_script_that_not_even_its_limit_ends_is_left_by_packer() -> None:
    """As Packer 1.6.6 tells it."""
    reader = FailureReader()
    for kind, text in (
        ("message", "Instance ID: i-e466e73fb8f85c26f"),
        ("say", "Setting a 2h5m0s timeout for the next provisioner..."),
        ("say", "Provisioning with shell script: ../../provisioners/cuda.sh"),
        ("message", "Unpacking …"),
        ("error", "Cancelling provisioner after a timeout..."),
        ("error", 'aborted: skipping cleanup of step "StepKeyPair"'),  # -on-error=abort
        ("error", "Build 'kiln.amazon-ebs.gpu' errored after 2 hours 5 minutes: context canceled"),
    ):
        reader.read(Event(0, kind, text))
    found = reader.failure("Build 'kiln' errored: Error executing script: dial tcp 10.0.0.1:22: x")
    assert found is not None
    assert (found.component, found.said) == ("cuda", ("Unpacking …",))
    assert found.message == (
        "it did not end within its time limit, and i-e466e73fb8f85c26f did not end it either: "
        "Packer left it after 2h5m0s"
    )
    assert "get-console-output --instance-id i-e466e73fb8f85c26f" in found.hints[0]


@pytest.mark.parametrize(
    ("ended", "last_words"),
    [
        ("Script exited with non-zero exit status: 3.Allowed exit codes are: [0]", ()),
        ("Script disconnected unexpectedly.", ("Script disconnected unexpectedly.",)),
    ],
)
def test_the_last_words_of_a_script_are_not_those_of_packer_that_leaves_its_instance(
    ended: str, last_words: tuple[str, ...]
) -> None:
    """As Packer 1.6.6 tells it with -on-error=abort."""
    reader = FailureReader()
    for kind, text in (
        ("say", "Provisioning with shell script: ../../provisioners/hygiene.sh"),
        ("error", "it is full"),
        ("error", ended),
        ("error", 'Step "StepProvision" failed, aborting...'),
        ("error", 'aborted: skipping cleanup of step "StepConnect"'),
        ("error", 'aborted: skipping cleanup of step "StepKeyPair"'),
        ("error", f"Build 'kiln.amazon-ebs.gpu' errored after 2 seconds 78 milliseconds: {ended}"),
    ):
        reader.read(Event(0, kind, text))
    found = reader.failure(ended)
    assert found is not None
    assert (found.component, found.said) == ("hygiene", ("it is full", *last_words))


def test_a_full_disk(machine: Machine) -> None:
    lines = message(machine, "echo settings >/dev/full\n")
    assert "No space left on device" in "".join(lines)
    assert lines[-1].startswith("  the disk of the build instance is full: give the row a larger")


def test_a_script_that_was_killed_still_names_component_and_status() -> None:
    reader = FailureReader()
    reader.read(Event(0, "say", "Provisioning with shell script: x/provisioners/cuda.sh"))
    reader.read(Event(0, "message", "Unpacking …"))
    found = reader.failure("Script exited with non-zero exit status: 137. Allowed exit codes…")
    assert found is not None
    assert (found.component, found.status, found.said) == ("cuda", 137, ("Unpacking …",))
    assert "memory ran out" in " ".join(found.hints)


def test_an_instance_that_does_not_come_back_after_its_reboot() -> None:
    # The lines of a bake in the lab whose kernel.sh powered the instance off.
    reader = FailureReader()
    for kind, text in (
        ("message", "Instance ID: i-e466e73fb8f85c26f"),
        ("say", "Provisioning with shell script: ../../provisioners/kernel.sh"),
        ("error", "kiln: kernel: rebooting from no kernel into 5.10.227"),
        ("say", "Pausing 2s before the next provisioner..."),
        ("say", "Provisioning with shell script: /tmp/packer-shell2917"),
        ("say", "Terminating the source AWS instance..."),
    ):
        reader.read(Event(0, kind, text))
    found = reader.failure("Error uploading script: dial tcp 10.249.1.2:22: no route to host")
    assert found is not None
    assert (found.component, found.message) == (
        "kernel",
        "i-e466e73fb8f85c26f did not come back after its reboot: "
        "Error uploading script: dial tcp 10.249.1.2:22: no route to host",
    )
    assert "lab.logs --instance i-e466e73fb8f85c26f" in found.hints[0]


@pytest.mark.parametrize(
    ("component", "what"),
    [
        ("kernel", "did not come back after its reboot"),
        ("tuning", "does not answer any more"),
    ],
)
def test_an_instance_that_is_gone_before_packer_has_removed_the_script(
    component: str, what: str
) -> None:
    # The lines of a bake in the lab whose script disabled sshd and rebooted.
    reader = FailureReader()
    for kind, text in (
        ("message", "Instance ID: i-e466e73fb8f85c26f"),
        ("say", f"Provisioning with shell script: ../../provisioners/{component}.sh"),
        ("error", "Created symlink /etc/systemd/system/ssh.service"),
        ("say", "Provisioning step had errors: Running the cleanup provisioner, if present..."),
    ):
        reader.read(Event(0, kind, text))
    words = (
        "Error removing temporary script at /tmp/script_4497.sh: dial tcp 10.208.1.41:22: "
        "connect: connection refused"
    )
    failure = reader.failure(words)
    assert failure is not None
    assert (failure.component, failure.message) == (
        component,
        f"i-e466e73fb8f85c26f {what}: {words}",
    )


def test_a_script_that_ends_its_own_session_is_named() -> None:
    reader = FailureReader()
    for kind, text in (
        ("message", "Instance ID: i-e466e73fb8f85c26f"),
        ("say", "Provisioning with shell script: ../../provisioners/tuning.sh"),
        ("message", "restarting sshd"),
    ):
        reader.read(Event(0, kind, text))
    failure = reader.failure(
        "Script disconnected unexpectedly. If you expected your script to disconnect, i.e. from a "
        'restart, you can try adding `"expect_disconnect": true` or `"valid_exit_codes": [0, '
        "2300218]` to the shell provisioner parameters."
    )
    assert failure is not None
    assert (failure.component, failure.message) == (
        "tuning",
        "its SSH session ended before the script did",
    )
    assert failure.said == ("restarting sshd",)
    assert failure.hints[0].startswith("does the script end its session, or restart sshd")


def test_words_of_a_step_that_worked_are_not_those_of_the_failure(machine: Machine) -> None:
    lines = message(machine, "echo fine\nkiln_say next\nfalse\n")
    assert "    | fine" not in lines


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
    reader = FailureReader()
    for kind, text in (
        ("say", "Creating snapshot tags"),
        ("error", "Error adding tags to Resources ([ami-1]): UnauthorizedOperation: tags"),
        ("say", "Deregistering the AMI and deleting associated snapshots because of cancellation"),
        ("error", "Error deregistering existing AMI: UnauthorizedOperation: image"),
        ("error", "Build 'kiln' errored: Error deregistering existing AMI"),
    ):
        reader.read(Event(0, kind, text))
    assert reader.cause.startswith("Error adding tags to Resources")
    assert FailureReader().cause == ""


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
    plan: Any = type("Plan", (), {"recipe": recipe})
    with pytest.raises(KilnError, match=r"provisioners/cuda\.sh:9: error: shell-syntax"):
        build_row.prepare(plan)


# ------------------------------------------------------------------- where it is kept


FOUND = Failure("cuda", "provisioners/cuda.sh", "no nvcc", 14, "nvcc", status=1, said=("a < b",))


def test_the_report_shows_place_status_and_words() -> None:
    page = report_html(a_record(status="failed", error="no nvcc", failure=FOUND))
    assert "provisioners/cuda.sh, line 14" in page
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


# ------------------------------------------------------------------- a proxy that fails

PROXY = Account(proxy="http://proxy.acme.example:3128", origins={"proxy": "amis.yaml:12:14"})
# What tools say, as people have pasted it, with this proxy's name.
BLAMED = {
    "curl 5": "curl: (5) Could not resolve proxy: proxy.acme.example",
    "curl 7": "curl: (7) Failed to connect to proxy.acme.example port 3128 after 1 ms: Couldn't "
    "connect to server",
    "curl 7, old": "curl: (7) Failed connect to proxy.acme.example:3128; Connection refused",
    "curl 7, new": "curl: (7) Failed to connect to developer.download.nvidia.com port 443 via "
    "proxy.acme.example after 1 ms: Could not connect to server",
    "curl 28": "curl: (28) Connection timed out after 20001 milliseconds",
    "curl 56, old": "curl: (56) Received HTTP code 403 from proxy after CONNECT",
    "curl 56": "curl: (56) CONNECT tunnel failed, response 407",
    "yum": 'https://a.example/repomd.xml: [Errno 14] curl#5 - "Could not resolve proxy: '
    'proxy.acme.example; Unknown error"',
    "dnf": "  - Curl error (7): Couldn't connect to server for https://a.example/repomd.xml "
    "[Failed to connect to proxy.acme.example port 3128: Connection refused]",
    "dnf, no name": "  - Curl error (5): Couldn't resolve proxy name for https://a.example/x "
    "[Could not resolve proxy: proxy.acme.example]",
    "apt": "  Could not connect to proxy.acme.example:3128 (10.0.0.1). - connect (111: Connection "
    "refused)",
    "apt, no name": "W: Failed to fetch http://a.example/InRelease  Temporary failure resolving "
    "'proxy.acme.example'",
    "apt, refused": "  Invalid response from proxy: HTTP/1.1 502 Bad Gateway  [IP: 10.0.0.1 3128]",
    "apt, a user": "  407  Proxy Authentication Required [IP: 10.0.0.1 3128]",
    # A plain answer of the proxy: apt 2.6.1, curl 7.88.1 and dnf 4.14.0 said so on Debian 12.
    "apt, 403": "E: Failed to fetch http://a.example/Packages  403  Forbidden [IP: 10.0.0.1 3128]",
    "apt, 503": "W: Failed to fetch http://a.example/InRelease  503  Service Unavailable "
    "[IP: 10.0.0.1 3128]",
    "curl 22": "curl: (22) The requested URL returned error: 503",
    "dnf, 403": "  - Status code: 403 for http://a.example/repodata/repomd.xml (IP: 10.0.0.1)",
    "yum, 403": 'https://a.example/repomd.xml: [Errno 14] curl#22 - "The requested URL returned '
    'error: 403"',
    "yum, 504": "http://a.example/repomd.xml: [Errno 14] HTTP Error 504 - Gateway Timeout",
}
NOT_BLAMED = (
    "curl: (6) Could not resolve host: developer.download.nvidia.com",
    "curl: (22) The requested URL returned error: 404",
    "E: Failed to fetch http://a.example/x.deb  404  Not Found [IP: 10.0.0.1 3128]",
    "E: Failed to fetch http://a.example/x.deb  403  Forbidden [IP: 192.0.2.1 80]",
    "Could not connect to xproxy.acme.example:80 (10.0.0.1)",
    "Could not connect to proxy.acme.example.com:80 (10.0.0.1)",
    "No package acme available.",
)


@pytest.mark.parametrize("tool", BLAMED)
def test_a_proxy_that_fails_is_named_with_the_place_that_sets_it(
    machine: Machine, tool: str
) -> None:
    events, status = ended(machine, f"cat >&2 <<'END'\n{BLAMED[tool]}\nEND\nfalse\n")
    (hint,) = about_proxy(read(events, status), PROXY)
    assert hint.startswith(
        "the bake goes through the proxy http://proxy.acme.example:3128 (amis.yaml:12:14): can the "
    )
    assert about_proxy(read(events, status), Account()) == ()


@pytest.mark.parametrize("words", NOT_BLAMED)
def test_a_proxy_is_not_named_where_something_else_failed(machine: Machine, words: str) -> None:
    events, status = ended(machine, f"cat >&2 <<'END'\n{words}\nEND\nfalse\n")
    assert about_proxy(read(events, status), PROXY) == ()


def test_a_proxys_password_is_not_in_its_hint() -> None:
    account = replace(PROXY, proxy="http://me:S3cret@proxy.acme.example:3128")
    failure = Failure("cuda", "provisioners/cuda.sh", "", said=(BLAMED["curl 5"],))
    (hint,) = about_proxy(failure, account)
    assert "S3cret" not in hint
    assert "proxy.acme.example:3128" in hint


def test_the_builds_last_lines_name_the_proxy(machine: Machine) -> None:
    events, status = ended(machine, f"echo '{BLAMED['curl 56']}'\nfalse\n")
    reader = FailureReader()
    for event in events:
        reader.read(event)
    recipe = SimpleNamespace(name="row")
    target = SimpleNamespace(about_failure=lambda missing, recipe: ("the lab's hint",))
    plan = SimpleNamespace(recipe=recipe, account=PROXY, target=target)
    run = SimpleNamespace(folder=Path("build/row/run"), id="run")
    watched: Any = SimpleNamespace(plan=plan, draft=SimpleNamespace(run=run), provisioners=reader)
    words = f"Script exited with non-zero exit status: {status}. Allowed exit codes are: [0]"
    result: Any = SimpleNamespace(errors=[words])
    lines = str(bake.error_of(watched, result)).splitlines()
    assert "proxy http://proxy.acme.example:3128 (amis.yaml:12:14)" in lines[-3]
    assert lines[-2] == "  the lab's hint"


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("public_ip", "internet gateway"),
        ("private_ip", "is this machine in that VPC"),
        ("session_manager", "has the parent AMI an SSM agent (Debian's have none)"),
    ],
)
def test_a_build_instance_that_does_not_answer_is_told_with_what_its_way_needs(
    way: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bake.resources, "ended_by_ec2", lambda target, run_id: [])
    plan = SimpleNamespace(recipe=SimpleNamespace(name="row"), account=Account(), target=None)
    run = SimpleNamespace(folder=Path("build/row/run"), id="run")
    hint = Network(None, "vpc-1", way, ()).hint
    watched: Any = SimpleNamespace(
        plan=plan, draft=SimpleNamespace(run=run), provisioners=FailureReader(), unreached=hint
    )
    said: Any = SimpleNamespace(errors=["Timeout waiting for SSH."])
    assert words in str(bake.error_of(watched, said))
    other: Any = SimpleNamespace(errors=["Error creating AMI: RequestLimitExceeded"])
    assert words not in str(bake.error_of(watched, other))
