"""The fleet without AWS: who is meant, the waves, the document, and its script on a machine."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import KilnError
from kiln.base.paths import TEMPLATES
from kiln.fleet import document, status
from kiln.fleet.install import Installation, Wave, allowed_errors, plan_waves
from kiln.fleet.machines import parse_targets
from kiln.xid import archive
from lab.moto.ssm import documents

SCRIPT = (TEMPLATES / "fleet" / "machine.sh").read_text()
ONE, TWO = "i-0123456789abcdef0", "i-0123456789abcdef1"


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("all", {}),
        ("tag:Team=ml", {"tag:Team": ["ml"]}),
        ("tag:aws:autoscaling:groupName=a,b", {"tag:aws:autoscaling:groupName": ["a", "b"]}),
        (f"{ONE},{TWO},{ONE}", {"instance-id": [ONE, TWO]}),
    ],
)
def test_targets_are_ids_a_tag_or_all(text: str, filters: dict[str, list[str]]) -> None:
    assert parse_targets(text) == filters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tag:Team", "tag:Team is not known"),
        ("tag:=ml", "the key"),
        ("tag:Team=m*", "m\\* is not a tag's value"),
        ("tag:Team=a,,b", "is not known"),
        ("i-1", "i-1 is not known"),
        ("Team=ml", "is not known"),
        (f"{ONE},", "is not known"),
    ],
)
def test_other_targets_are_refused(text: str, message: str) -> None:
    with pytest.raises(KilnError, match=message) as refused:
        parse_targets(text)
    assert refused.value.exit_status == 2


@pytest.mark.parametrize(
    ("total", "waves", "sizes"),
    [
        (12, "1,10%,100%", [1, 2, 9]),
        (200, "1,10%,100%", [1, 20, 179]),
        (1, "1,10%,100%", [1]),
        (2, "1,10%,100%", [1, 1]),
        (10, "50%,50%", [5, 5]),
        (10, "1,2", [1, 2]),
        (300, "150,100%", [150, 150]),
    ],
)
def test_waves_are_numbers_and_percent_of_all(total: int, waves: str, sizes: list[int]) -> None:
    ids = [f"i-{number}" for number in range(total)]
    planned = plan_waves(ids, waves)
    assert [len(wave) for wave in planned] == sizes
    assert [machine for wave in planned for machine in wave] == ids[: sum(sizes)]


@pytest.mark.parametrize("text", ["", "0", "0%", "1,,2", "101%", "one", "-1", "1;2", "10 %%"])
def test_other_waves_are_refused(text: str) -> None:
    with pytest.raises(KilnError, match="--waves") as refused:
        plan_waves([], text)
    assert refused.value.exit_status == 2


def test_so_many_may_fail() -> None:
    assert [allowed_errors(text, 40) for text in ("0", "3", "5%", "1%", "120")] == [
        *(0, 3, 2, 0, 120)
    ]
    with pytest.raises(KilnError, match="--max-errors: 'many'"):
        allowed_errors("many", 40)


def steps(**parameters: str) -> list[str]:
    """The names of the steps that run with these parameters."""
    content = json.loads(document.document_text())
    values = documents.values(content, {name: [value] for name, value in parameters.items()})
    return [step.name for step in documents.steps(content, values, "Linux") if step.runs]


def test_each_action_runs_its_own_steps() -> None:
    assert steps(action="install") == ["fetch", "prepare", "install"]
    assert steps(action="install", package="Install") == ["fetch", "prepare", "package", "install"]
    assert steps(action="confirm") == ["confirm"]
    assert steps(action="put-back") == ["back"]
    assert steps(action="uninstall", package="Uninstall") == ["uninstall", "remove"]


def test_document_has_no_other_placeholders() -> None:
    text = document.document_text()
    declared = json.loads(text)["parameters"]
    assert re.fullmatch(r"[0-9]+(\.[0-9]+){2}b[0-9]+", declared["version"]["default"])
    assert set(re.findall(r"\{\{ *(.*?) *\}\}", text)) <= set(declared)
    assert "{{" not in SCRIPT
    # https://docs.aws.amazon.com/systems-manager/latest/userguide/documents-schemas-features.html
    assert len(text.encode()) < 64 * 1024


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("action", "look"),
        ("source", "https://a.example/b; reboot"),
        ("sha256", "$(reboot)"),
        ("mark", "a b"),
        ("version", "latest"),
        ("replace", "perhaps"),
    ],
)
def test_document_refuses_other_parameter_values(name: str, value: str) -> None:
    from lab.moto.ssm.errors import SsmError

    content = json.loads(document.document_text())
    with pytest.raises(SsmError, match=f"Parameter {name}"):
        documents.values(content, {"action": ["install"], name: [value]})


def on_a_machine(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the document's script as on a machine that lies in a folder of the test's."""
    script = SCRIPT.replace("PATH=", f"PATH={folder}/bin:")
    for name in ("/var/lib/kiln", "/var/lib/cloud", "/opt/aws", "/dev/kmsg"):
        script = script.replace(name, f"{folder}{name}")
    return subprocess.run(
        ["bash", "-s", "--", *arguments], input=script, capture_output=True, text=True, check=False
    )


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with an id and a kernel log."""
    for name, text in (("var/lib/cloud/data/instance-id", f"{ONE}\n"), ("dev/kmsg", "")):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path


def downloaded(machine: Path, name: str, status: int = 0) -> str:
    """A bundle that notes each call, where the document downloads it to; its SHA-256."""
    bundle = machine / "var/lib/kiln/fleet/incoming/kiln-telemetry.sh"
    bundle.parent.mkdir(parents=True)
    bundle.write_text(f"echo {name} $1 >>{machine}/calls\nexit {status}\n")
    return hashlib.sha256(bundle.read_bytes()).hexdigest()


def installed(machine: Path, name: str, replace: str = "no", status: int = 0) -> int:
    """Install such a bundle; the exit status."""
    digest = downloaded(machine, name, status)
    assert on_a_machine(machine, "prepare", digest, "Keep", "1").returncode == 0
    return on_a_machine(machine, "install", replace, "kiln-fleet-1").returncode


def read_kernel_log(machine: Path) -> list[dict[str, Any]]:
    return list(archive.events((machine / "dev/kmsg").read_text().splitlines()))


def files(machine: Path, folder: str) -> list[str]:
    return sorted(path.name for path in (machine / folder).rglob("*") if path.is_file())


def test_bundle_of_another_hash_changes_nothing(machine: Path) -> None:
    digest = downloaded(machine, "a")
    done = on_a_machine(machine, "prepare", "0" * 64, "Install", "1")
    assert done.returncode == 1
    assert f"SHA-256 is {digest} and not {'0' * 64}" in done.stderr
    assert files(machine, "var/lib/kiln") == []
    assert not (machine / "calls").exists()


def test_test_event_names_run_and_instance(machine: Path) -> None:
    """The agent holds a file's last line for five seconds: another event of its own follows."""
    assert installed(machine, "a") == 0
    first, last = read_kernel_log(machine)
    assert first["xid"] == last["xid"] == 14
    assert (first["process"], last["process"]) == (f"kiln-fleet-1-{ONE}", "kiln-fleet-1")
    # On another GPU, so that the monitor does not fold the two.
    assert first["pci"] != last["pci"]


def test_first_installation_is_put_back_whole(machine: Path) -> None:
    assert installed(machine, "a", status=1) == 1
    # The bundle fails here, also when it is to go: that is not hidden, and what is needed stays.
    assert on_a_machine(machine, "put-back").returncode == 1
    assert "bundle.sh" in files(machine, "var/lib/kiln/fleet")
    bundle = machine / "var/lib/kiln/fleet/bundle.sh"
    bundle.write_text(bundle.read_text().replace("exit 1", "exit 0"))
    assert on_a_machine(machine, "put-back").returncode == 0
    assert (machine / "calls").read_text().split() == ["a", "a", "--uninstall", "a", "--uninstall"]
    assert not (machine / "var/lib/kiln").exists()


def test_former_bundle_is_put_back(machine: Path) -> None:
    theirs = of_theirs(machine, "amazon-cloudwatch-agent.d/theirs.json")
    in_force(machine, "a")
    assert installed(machine, "b", replace="yes") == 0
    assert not theirs.exists()
    # Exit status 168 keeps the document from its last step, which removes the package.
    assert on_a_machine(machine, "put-back").returncode == 168
    assert (machine / "calls").read_text().split() == ["a", "b", "a"]
    assert theirs.read_text() == "{}"
    assert on_a_machine(machine, "uninstall").returncode == 0
    assert (machine / "calls").read_text().split()[-2:] == ["a", "--uninstall"]
    assert theirs.read_text() == "{}"


def of_theirs(machine: Path, name: str) -> Path:
    """A file of the agent's configuration that is not ours."""
    theirs = machine / "opt/aws/amazon-cloudwatch-agent/etc" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("{}")
    return theirs


def in_force(machine: Path, name: str) -> None:
    """Install such a bundle, whose reports are seen in CloudWatch."""
    assert installed(machine, name) == 0
    assert on_a_machine(machine, "confirm").returncode == 0


def last_call(machine: Path) -> list[str]:
    """The bundle that was called last, and with what."""
    return (machine / "calls").read_text().splitlines()[-1].split()


def unconfirmed(machine: Path) -> bool:
    return status.read_state(on_a_machine(machine, "look").stdout).unconfirmed


# A bundle with `!` reported, so that it is in force; the others are half-made. 168 keeps the agent.
@pytest.mark.parametrize(
    ("bundles", "ended", "last"),
    [("a!", 168, "a"), ("a! a", 168, "a"), ("a! b c", 168, "a"), ("a b", 0, "b --uninstall")],
)
def test_what_was_in_force_is_put_back(machine: Path, bundles: str, ended: int, last: str) -> None:
    for bundle in bundles.split():
        assert installed(machine, bundle.rstrip("!")) == 0
        assert unconfirmed(machine)
        if bundle.endswith("!"):
            assert on_a_machine(machine, "confirm").returncode == 0
            assert not unconfirmed(machine)
    assert on_a_machine(machine, "put-back").returncode == ended
    assert " ".join(last_call(machine)) == last
    assert not unconfirmed(machine)
    assert (machine / "var/lib/kiln").exists() == (ended == 168)


def test_configuration_of_a_killed_run_comes_back(machine: Path) -> None:
    theirs = of_theirs(machine, "amazon-cloudwatch-agent.json")
    in_force(machine, "a")
    assert installed(machine, "b", replace="yes") == 0
    assert installed(machine, "b", replace="yes") == 0
    assert on_a_machine(machine, "put-back").returncode == 168
    assert theirs.read_text() == "{}"


def test_uninstall_restores_the_configuration(machine: Path) -> None:
    etc = machine / "opt/aws/amazon-cloudwatch-agent/etc"
    (etc / "amazon-cloudwatch-agent.d").mkdir(parents=True)
    for name in ("amazon-cloudwatch-agent.json", "amazon-cloudwatch-agent.d/ssm_theirs"):
        (etc / name).write_text(name)
    (etc / "amazon-cloudwatch-agent.d/kiln-events.json").write_text("ours")
    assert installed(machine, "a", replace="yes") == 0
    assert files(machine, "opt/aws") == ["kiln-events.json"]
    assert on_a_machine(machine, "uninstall").returncode == 0
    for name in ("amazon-cloudwatch-agent.json", "amazon-cloudwatch-agent.d/ssm_theirs"):
        assert (etc / name).read_text() == name


def test_machine_that_cannot_take_notes_stays(machine: Path) -> None:
    """Otherwise the way back would leave the agent as it is, and say that all is as before."""
    digest = downloaded(machine, "a")
    note = machine / "var/lib/kiln/fleet/agent-was"
    note.symlink_to("/dev/full")
    done = on_a_machine(machine, "prepare", digest, "Keep", "1")
    assert done.returncode == 1, "the document ends here, before its installation"
    assert "/var/lib/kiln/fleet cannot be written" in done.stderr
    assert not (machine / "calls").exists()


@pytest.mark.parametrize(("was", "word"), [("active", "start"), ("inactive", "stop")])
def test_agent_that_does_not_go_back_is_an_error(machine: Path, was: str, word: str) -> None:
    systemctl = machine / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(f"#!/bin/sh\n[ $1 = is-active ] && echo {was} && exit\nexit 1\n")
    systemctl.chmod(0o755)
    agent = machine / "opt/aws/amazon-cloudwatch-agent/bin/CWAGENT_VERSION"
    agent.parent.mkdir(parents=True)
    agent.write_text("1.300031.0b313")
    assert installed(machine, "a") == 0
    done = on_a_machine(machine, "uninstall")
    assert done.returncode == 1
    assert f"amazon-cloudwatch-agent.service does not {word}: see journalctl" in done.stderr
    assert "everything is as it was before" not in done.stdout


def test_bundle_installed_by_hand_stays(machine: Path) -> None:
    (machine / "var/lib/kiln/telemetry").mkdir(parents=True)
    done = on_a_machine(machine, "prepare", downloaded(machine, "a"), "Keep", "1")
    assert done.returncode == 1
    assert "installed here by hand: run it with --uninstall first" in done.stderr
    assert "bundle_by_hand=yes" in on_a_machine(machine, "look").stdout


def test_what_a_machine_says_is_read(tmp_path: Path) -> None:
    found = status.read_state(on_a_machine(tmp_path, "look").stdout)
    assert (found.bundle, found.bundle_by_hand, found.image) == ("", "", "")
    answer = "driver=580.1\nagent=1.3b1\nbundle=\nimage=yes\nfiles=ssm_a,b.json\nbundle_by_hand=\n"
    found = status.read_state(answer)
    assert (found.driver, found.agent, found.image) == ("580.1", "1.3b1", "yes")
    assert found.configuration == "AMI Kiln's image + Parameter Store a + b.json"


def test_the_outcome_names_each_instance_and_why() -> None:
    wave = Wave([ONE, TWO], ok=[ONE], failed=[TWO], rolled_back=[TWO], why={TWO: "no metric"})
    done = Installation((wave,), stopped=True, skipped={"i-9": "no GPU: t3.micro"}, left=("i-8",))
    for line in (
        f"{TWO}  no metric; put back as it was",
        "skipped     i-9  no GPU: t3.micro",
        "not started i-8",
        "stopped: too many failed",
    ):
        assert line in str(done)
