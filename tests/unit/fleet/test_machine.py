"""The fleet without AWS: targets, waves, the document, and its script on a machine."""

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
from kiln.fleet.install import allowed_errors, plan_waves
from kiln.fleet.machines import parse_targets
from kiln.xid import archive
from lab.moto.ssm import documents

SCRIPT = (TEMPLATES / "fleet" / "machine.sh").read_text()
ONE, TWO = "i-0123456789abcdef0", "i-0123456789abcdef1"


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("all", {}),
        ("tag:aws:autoscaling:groupName=a,b", {"tag:aws:autoscaling:groupName": ["a", "b"]}),
        (f"{ONE},{TWO},{ONE}", {"instance-id": [ONE, TWO]}),
        ("tag:Team", None),
        ("tag:=ml", None),
        ("tag:Team=m*", None),
        ("tag:Team=a,,b", None),
        ("Team=ml", None),
        (f"{ONE},", None),
    ],
)
def test_targets_are_ids_a_tag_or_all(text: str, filters: dict[str, list[str]] | None) -> None:
    if filters is not None:
        assert parse_targets(text) == filters
        return
    with pytest.raises(KilnError) as refused:
        parse_targets(text)
    assert refused.value.exit_status == 2


@pytest.mark.parametrize(
    ("total", "waves", "sizes"),
    [
        (200, "1,10%,100%", [1, 20, 179]),
        (1, "1,10%,100%", [1]),
        (2, "1,10%,100%", [1, 1]),
        (10, "50%,50%", [5, 5]),
        (10, "1,2", [1, 2]),
        *((10, wrong, None) for wrong in ("", "0", "0%", "1,,2", "101%", "one", "-1")),
    ],
)
def test_waves_are_numbers_or_percent_of_all(
    total: int, waves: str, sizes: list[int] | None
) -> None:
    ids = [f"i-{number}" for number in range(total)]
    if sizes:
        planned = plan_waves(ids, waves)
        assert [len(wave) for wave in planned] == sizes
        assert [machine for wave in planned for machine in wave] == ids[: sum(sizes)]
        return
    with pytest.raises(KilnError, match="--waves") as refused:
        plan_waves(ids, waves)
    assert refused.value.exit_status == 2


def test_max_errors_is_a_number_or_percent() -> None:
    allowed = [allowed_errors(text, 40) for text in ("0", "3", "5%", "1%", "120")]
    assert allowed == [0, 3, 2, 0, 120]
    with pytest.raises(KilnError, match="--max-errors: 'many'"):
        allowed_errors("many", 40)


def steps(**parameters: str) -> list[str]:
    """The names of the steps that run with these parameters."""
    content = json.loads(document.document_text())
    values = documents.values(content, {name: [value] for name, value in parameters.items()})
    return [step.name for step in documents.steps(content, values) if step.runs]


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
    assert installed(machine, "a") == 0
    assert on_a_machine(machine, "confirm").returncode == 0
    for _ in range(2):  # the first was killed
        assert installed(machine, "b", replace="yes") == 0
    assert not theirs.exists()
    # Exit status 168 keeps the document from its last step, which removes the package.
    assert on_a_machine(machine, "put-back").returncode == 168
    assert (machine / "calls").read_text().split() == ["a", "b", "b", "a"]
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


# A bundle with `!` reported, so that it is in force; the others are half-made. 168 keeps the agent.
@pytest.mark.parametrize(
    ("bundles", "ended", "last"),
    [("a!", 168, "a"), ("a! a", 168, "a"), ("a! b c", 168, "a"), ("a b", 0, "b --uninstall")],
)
def test_put_back_restores_the_bundle_in_force(
    machine: Path, bundles: str, ended: int, last: str
) -> None:
    for bundle in bundles.split():
        assert installed(machine, bundle.rstrip("!")) == 0
        if bundle.endswith("!"):
            assert on_a_machine(machine, "confirm").returncode == 0
        state = status.read_state(on_a_machine(machine, "look").stdout)
        assert bool(state.unconfirmed) != bundle.endswith("!")
    assert on_a_machine(machine, "put-back").returncode == ended
    assert (machine / "calls").read_text().splitlines()[-1].strip() == last
    assert (machine / "var/lib/kiln").exists() == (ended == 168)


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
