"""A bake: what Packer waits for, and what the user reads of a provisioner that fails.

Each script is run by bash with the real library, its output is told as Packer tells it, and the
message is the one that ends the build.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from psutil import process_iter

from kiln.base import overlay
from kiln.base.account import Account
from kiln.base.errors import KilnError
from kiln.cloud.network import Network
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.packer.process import BuildResult, Event
from kiln.pipeline import bake
from kiln.pipeline.bake import FailureReader
from kiln.pipeline.draft import ProvisionerError
from kiln.pipeline.record import Failure
from kiln.pipeline.report import report_html
from tests.unit.provisioners.machine import Machine
from tests.unit.records import a_record

HEAD = '#!/usr/bin/env bash\n\nsource "${KILN_DIR:?}/lib/kiln.sh"\n'


pytestmark = pytest.mark.slow


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
    for line in ("Provisioning step had errors: Running", "Terminating the source AWS instance..."):
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
NO_X = 'kiln_die "no x" "make it"'
# What fails in the script; what is said of it; its line, and the lines below.
TABLE = {
    "echo begin\nfalse\necho never\n":
        ("a command failed with status 1: false", "5", "its last lines:", "  | begin"),
    "build() {\n    ls /nonexistent\n}\nbuild\n":
        ("a command failed with status 2: ls /nonexistent", "5", "its last lines:", NO_FILE),
    "printf a \\\n    | grep b \\\n    | sort\n":
        ("a command in a pipe failed with status 1", "6", "statuses of the pipe: 0 1 0"),
    f"look() {{\n    ls /nonexistent || {NO_X}\n}}\nx=$(look) || exit 1\n":
        ("no x", "5", "make it", "status: 2", "its last lines:", NO_FILE),
    '[[ -e /nonexistent ]] || kiln_die "no x"\n': ("no x", "4"),
}  # fmt: skip


@pytest.mark.parametrize("body", TABLE, ids=["command", "function", "pipe", "kiln_die", "test"])
def test_failure_names_component_line_and_words(machine: Machine, body: str) -> None:
    what, line, *more = TABLE[body]
    assert message(machine, body) == [
        f"row: packer build failed in sample: {what}",
        f"  provisioners/sample.sh line {line}",
        *(f"  {text}" for text in more),
    ]


def test_failure_in_the_library_names_both_lines(machine: Machine) -> None:
    lines = message(machine, "tree=$(kiln_unpack /nonexistent.tar) || exit 1\n")
    assert lines[1] == "  provisioners/sample.sh line 4"
    assert re.search(r"\n  in: lib/downloads\.sh line \d+, kiln_unpack\n", "\n".join(lines))


@pytest.mark.parametrize("family", ["debian", "al"])
def test_package_that_no_repository_has_is_named_alone(machine: Machine, family: str) -> None:
    if family == "al":
        machine.environment |= {"KILN_FAMILY": "al", "KILN_PACKAGE_MANAGER": "dnf"}
        machine.command("rpm", "echo package is not installed; exit 1")
        machine.command("dnf", '[[ $* == *" list gcc" || $* == *" list make" ]] && exit 0\n'
                        "echo 'Error: No matching Packages to list' >&2; exit 1")  # fmt: skip
    else:
        machine.command("dpkg-query", "exit 1")
        machine.command("apt-cache", '[[ $2 == chrony ]] || echo " $2 | 1 | y"')
        machine.command("apt-get", "exit 100")
    found = read(*ended(machine, "kiln_install gcc chrony make\n"))
    assert found.missing == ["chrony"]
    assert found.message == "no repository has a package named chrony"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("build() {\n    hang || true\n}\nbuild || true\n", 7),
        ("echo a \\\n    | hang \\\n    | cat\n", 6),
        ("while :; do :; done\n", 4),
    ],
    ids=["function", "pipe", "loop"],
)
def test_time_limit_ends_script_with_its_children(machine: Machine, body: str, line: int) -> None:
    machine.environment["KILN_TIME_LIMIT"] = "1s"
    machine.command("hang", f"{shutil.which('sleep')} 300 # {machine.root}")
    lines = message(machine, body)
    failed = "row: packer build failed in sample: it did not end within its time limit, 1s"
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
        lines = [" ".join(each.info["cmdline"] or ()) for each in process_iter(["cmdline"])]
        found = [line for line in lines if str(machine.root) in line]
        if not found:
            break
        time.sleep(0.1)
    return found


def told(*lines: tuple[str, str]) -> FailureReader:
    """A reader of these lines of Packer's."""
    reader = FailureReader()
    for kind, text in lines:
        reader.read(Event(0, kind, text))
    return reader


CUT_OFF = (
    ("kernel", "Error uploading script: dial tcp 10.249.1.2:22: no route to host", "cleanup"),
    ("cuda", "Script exited with non-zero exit status: 137. Allowed exit codes are: [0]", "abort"),
    ("tuning", "Script disconnected unexpectedly.", "cleanup"),
    ("efa", "Cancelling provisioner after a timeout...", "abort"),
)


@pytest.mark.parametrize(("component", "words", "on_error"), CUT_OFF)
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
    pause = [
        ("say", "Pausing 2s before the next provisioner..."),
        ("say", "Provisioning with shell script: /tmp/sh1"),
    ]
    reader = told(
        ("say", f"Provisioning with shell script: x/provisioners/{component}.sh"),
        ("message", "Unpacking …"),
        *(pause if component == "kernel" else []),
        ("error", words),
        *steps[on_error],
        ("error", f"Build 'kiln' errored: {words}"),
    )
    found = reader.failure(f"Build 'kiln' errored: {words}")
    assert found is not None
    assert (found.component, found.message) == (component, f"Build 'kiln' errored: {words}")
    assert found.said[0] == "Unpacking …"
    assert not any("aborted" in line for line in found.said)


def test_component_that_worked_is_not_blamed() -> None:
    reader = told(
        ("say", "Provisioning with shell script: x/provisioners/hygiene.sh"),
        ("message", "kiln: hygiene: 20 checks passed"),
        ("say", "Stopping the source instance..."),
        ("say", "Creating AMI row from instance i-1"),
    )
    assert reader.failure("Error creating AMI: RequestLimitExceeded") is None
    assert FailureReader().failure("Timeout waiting for SSH.") is None


def test_failure_of_packers_own_clean_up_is_not_the_cause() -> None:
    """As Packer 1.6.6 ends when tags are refused, and then the AMI's removal too."""
    cause, last = "Error adding tags: UnauthorizedOperation", "Build 'kiln' errored: Error removing"
    reader = told(("error", cause), ("error", "Error deregistering existing AMI"), ("error", last))
    assert reader.first_error == cause
    assert f"packer build failed: {cause}; {last}" in str(error_with(reader, last))


def test_seconds_of_a_component_include_its_reboot() -> None:
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
def test_silent_build_instance_is_told_with_what_its_way_needs(way: str, words: str) -> None:
    hint = Network((None,), "vpc-1", way, ()).hint
    assert words in str(error_with(FailureReader(), "Timeout waiting for SSH.", hint=hint))
    other = error_with(FailureReader(), "Error creating AMI: RequestLimitExceeded", hint=hint)
    assert words not in str(other)


def test_report_shows_place_status_and_words() -> None:
    found = Failure("cuda", "provisioners/cuda.sh", "no nvcc", 14, ("make it",), ("a < b",))
    page = report_html(a_record(status="failed", error="no nvcc", failure=found))
    assert "provisioners/cuda.sh line 14" in page
    assert "make it" in page and "a &lt; b" in page


def test_packer_waits_for_ssh_as_long_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_SSH_TIMEOUT", "1200")
    digests = {"recipe_digest": "0" * 64, "input_digest": "1" * 64}
    target = Target("a test", "us-east-1")
    plan: Any = SimpleNamespace(account=Account(), target=target, **digests)
    given = bake.run_variables(plan, Run("20260101T000000Z-abcd", "row", Path()), "abc")
    assert given["ssh_timeout"] == "1200.0s"


def test_output_of_packer_notes_launch_waits_and_failure() -> None:
    plan: Any = SimpleNamespace(account=Account())
    draft: Any = SimpleNamespace(launched=[])
    stage = MagicMock()
    output = bake.PackerOutput(plan, MagicMock(), stage, draft)
    for text in (
        "Instance ID: i-0123456789abcdef0",
        "Waiting for SSH to become available...",
        "Provisioning with shell script: x/provisioners/cuda.sh",
    ):
        output.read(Event(1, "say", text))
    assert draft.launched == ["i-0123456789abcdef0"]
    waits = [call.args[0].split()[0] for call in stage.waits_for.call_args_list]
    assert waits == ["SSH", "provisioner"]
    output.read(Event(2, "error", "Script disconnected unexpectedly."))
    found = output.reader.failure("Build 'kiln' errored: Script disconnected unexpectedly.")
    assert found and found.component == "cuda"


def test_bake_runs_again_where_packer_gave_up_on_its_ami(monkeypatch: pytest.MonkeyPatch) -> None:
    gave_up = "Unknown error waiting for AMI; api error InvalidAMIID.NotFound: no such image"
    given_up = BuildResult(1, {}, (gave_up,), interrupted=False)
    results = [given_up, BuildResult(0, {"us-east-1": "ami-2"}, (), interrupted=False), given_up]
    removed: list[str] = []
    monkeypatch.setattr(bake, "write_inputs", MagicMock())
    monkeypatch.setattr(bake, "_run_packer", lambda *_: results.pop(0))
    monkeypatch.setattr(bake.cleanup, "remove_images", lambda run_id, _: removed.append(run_id))
    plan = MagicMock(target=Target("a test", "us-east-1"), account=Account(), instance_types=["t"])
    plan.options.keep_instance = False
    draft, access = MagicMock(launched=[]), MagicMock()
    access.network.subnets = [None]
    given: Any = (plan, MagicMock(), draft, access, MagicMock(), MagicMock())
    assert bake.bake(*given) == "ami-2"
    assert removed == [draft.run.id]
    plan.options.keep_instance = True
    with pytest.raises(KilnError):
        bake.bake(*given)
    assert len(removed) == 1
