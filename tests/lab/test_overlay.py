"""The overlay of docs/overlay.md, baked and booted: what it adds is on the image, and checked.

Its script is written as one writes a script: it hangs, it fails, its build instance is kept and
gone on with, and the image is baked anew from the state before it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from conftest import another_lab, lab_of_the_tests, plain_client, users_environment

from lab import settings
from tests.unit import commands
from tests.unit.test_overlay import written

ROW = "al2023-580.999.01-open-base-x86_64"
# What the row is not about: its bake takes half the time.
SPARED = (
    *("aws-hw-monitor", "boost-clocks", "gpu-mig", "lustre-client", "nvidia-fabricmanager"),
    *("ssm-agent", "tuning"),
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The page's overlay, and a lab of its own: one that runs does not get other facts."""
    lab_of_the_tests()
    home = tmp_path_factory.mktemp("overlay")
    rows = written(home / "acme") / "amis.yaml"
    rows.write_text(rows.read_text().replace("acme, ", f"acme, without: [{', '.join(SPARED)}], "))
    env = users_environment(home) | {
        "KILN_OVERLAY": str(home / "acme"),
        "KILN_LAB_INDEX": str(another_lab(__file__).index),
    }
    yield env
    commands.invoke("lab.clean", "--force", env=env)


@pytest.fixture(scope="module")
def script(environment: dict[str, str]) -> Path:
    """The provisioner of the page's component."""
    return Path(environment["KILN_OVERLAY"]) / "provisioners" / "acme-baseline.sh"


def build(environment: dict[str, str], *flags: str) -> Any:
    """A build of the page's row from its component on: exit status, JSON, what it said."""
    asked = ["build", "--name", ROW, "--from", "acme-baseline", "--json", *flags]
    done = commands.invoke(*asked, timeout=600, env=environment)
    return done.returncode, json.loads(done.stdout), done.stderr


def client_of(environment: dict[str, str]) -> Any:
    own = replace(settings.current(), index=int(environment["KILN_LAB_INDEX"]))
    return plain_client(own, "ec2")


@dataclass
class Hung:
    """A bake whose script hung."""

    status: int
    error: dict[str, Any]
    record: dict[str, Any]


@pytest.fixture(scope="module")
def hung(environment: dict[str, str], script: Path) -> Hung:
    """The bake of a script that never ends."""
    right = script.read_text()
    head, mark, rest = right.partition('lib/kiln.sh"\n')
    script.write_text(f"{head}{mark}sleep infinity || true\n{rest}")
    status, answer, _ = build(environment, "--time-limits", "acme-baseline=10s")
    script.write_text(right)
    (path,) = Path(environment["KILN_BUILD_DIR"]).glob("*/*/record.json")
    return Hung(status, answer["error"], json.loads(path.read_text()))


@dataclass
class Failed:
    """A bake whose script failed, and whose instance was kept; `on_it` is what a command said that
    was sent there as the message has it, `swept` what sweep lists and until when it is kept."""

    status: int
    hint: str
    record: dict[str, Any]
    on_it: str
    swept: dict[str, str]


@pytest.fixture(scope="module")
def failed(environment: dict[str, str], script: Path, hung: Hung) -> Failed:
    right = script.read_text()
    script.write_text(right.replace("kiln_enable", "kiln_install jq chrony tmux\nkiln_enable"))
    status, answer, _ = build(environment, "--on-error", "keep")
    error = answer["error"]
    script.write_text(right)
    ssh = shlex.split(next(line for line in error["hint"].splitlines() if "ssh -i" in line))
    trust = ("-o", "StrictHostKeyChecking=accept-new")
    there = subprocess.run(
        [*ssh, *trust, "cat /etc/acme/banner; systemctl list-timers kiln-kept.timer"],
        capture_output=True,
        text=True,
        check=False,
    )
    path = max(Path(environment["KILN_BUILD_DIR"]).glob("*/*/record.json"))
    swept = commands.invoke("sweep", "--regions", "us-east-1", "--json", env=environment)
    return Failed(
        status,
        error["hint"],
        json.loads(path.read_text()),
        there.stdout,
        {found["id"]: found["kept_until"] for found in json.loads(swept.stdout)["found"]},
    )


@pytest.fixture(scope="module")
def continued(environment: dict[str, str], failed: Failed) -> tuple[int, dict[str, Any]]:
    """The build that went on where the script had failed."""
    status, built, output = build(environment)
    assert status == 0, output
    return status, built[0]


@pytest.fixture(scope="module")
def record(
    environment: dict[str, str], script: Path, continued: tuple[int, dict[str, Any]]
) -> dict[str, Any]:
    """The build of the page's own row, from the state before its component."""
    script.write_text(script.read_text() + "# one more change\n")
    status, built, output = build(environment)
    assert status == 0, output
    only: dict[str, Any] = built[0]
    return only


def test_a_script_that_hangs_ends_at_its_limit_and_names_what_it_waited_for(hung: Hung) -> None:
    assert hung.status == 1
    assert hung.error["message"].endswith(
        "packer build failed in acme-baseline: it did not end within its time limit, 10s"
    )
    lines = hung.error["hint"].splitlines()
    assert lines[0].endswith("acme-baseline.sh line 9: sleep infinity || true")
    assert "  what ran then: sleep infinity" in lines
    assert "--time-limits acme-baseline=20s" in hung.error["hint"]
    assert (hung.record["status"], hung.record["failure"]["line"]) == ("failed", 9)
    assert (hung.record["kept"], hung.record["left"]) == (None, [])


def test_a_bake_that_fails_leaves_its_instance_with_a_deadline(failed: Failed) -> None:
    assert failed.status == 1
    kept = failed.record["kept"]
    assert kept["instance_id"] in failed.hint
    assert kept["ends_itself"]
    assert f"--name {ROW} --from acme-baseline" in failed.hint
    assert "Property of Acme" in failed.on_it
    assert "kiln-kept.service" in failed.on_it
    assert failed.swept[kept["instance_id"]] == kept["until"]


def test_a_package_that_the_lab_lacks_is_named_alone_and_told_from_one_that_nobody_has(
    failed: Failed,
) -> None:
    assert failed.record["failure"]["missing"] == ["chrony"]
    assert "the lab has no stand-in for chrony: it has " in failed.hint
    assert "own repositories may well have more" in failed.hint


def test_a_bake_goes_on_on_the_instance_and_its_ami_is_never_verified(
    environment: dict[str, str], continued: tuple[int, dict[str, Any]], failed: Failed
) -> None:
    status, built = continued
    assert status == 0
    assert built["checks"]["failed"] == 0
    assert built["status"] == "unverified"
    assert built["continued"]["on"] == failed.record["kept"]["instance_id"]
    assert (built["recipe_digest"], built["input_digest"]) == (None, None)
    verify = commands.invoke("verify", "--ami", built["ami_id"], "-k", "banner", env=environment)
    assert "1 passed" in verify.stdout
    refused = commands.invoke("publish", "--name", ROW, "--target", "lab", env=environment)
    assert refused.returncode == 1
    assert "ended as unverified" in refused.stderr


def test_its_tags_are_those_of_packer_without_a_digest(
    environment: dict[str, str], continued: tuple[int, dict[str, Any]], record: dict[str, Any]
) -> None:
    ids = [continued[1]["ami_id"], record["ami_id"]]
    images = client_of(environment).describe_images(ImageIds=ids)["Images"]
    tags = {image["ImageId"]: {t["Key"]: t["Value"] for t in image["Tags"]} for image in images}
    by_hand, by_packer = (tags[ami_id] for ami_id in ids)
    assert by_hand.pop("kiln:continued") == continued[1]["continued"]["run_id"]
    assert by_packer.pop("kiln:verified").startswith("pass ")
    assert by_hand.pop("kiln:recipe-digest") == by_hand.pop("kiln:input-digest")
    assert by_packer.pop("kiln:recipe-digest") == record["recipe_digest"]
    assert by_packer.pop("kiln:input-digest") == record["input_digest"]
    for run in ("kiln:run-id", "Name"):
        assert by_hand.pop(run) != by_packer.pop(run)
    assert by_hand == by_packer


def test_the_kept_instance_is_gone_when_its_ami_is_made(
    environment: dict[str, str], failed: Failed, record: dict[str, Any]
) -> None:
    mine = [{"Name": "instance-id", "Values": [failed.record["kept"]["instance_id"]]}]
    answer = client_of(environment).describe_instances(Filters=mine)
    states = [i["State"]["Name"] for r in answer["Reservations"] for i in r["Instances"]]
    assert states in ([], ["terminated"])
    assert not list(Path(environment["KILN_BUILD_DIR"]).glob("*/*/run.json"))


def test_a_changed_script_is_baked_from_the_state_before_it(record: dict[str, Any]) -> None:
    assert record["continued"]["start"] == "acme-baseline"
    assert record["continued"]["same_inputs"]
    order = list(record["recipe"]["components"])
    assert list(record["component_seconds"]) == order[order.index("acme-baseline") :]


def test_its_row_is_verified_with_the_driver_of_its_facts(record: dict[str, Any]) -> None:
    assert record["status"] == "verified"
    assert record["versions"]["components"]["nvidia-driver"]["version"] == "580.999.01"


def test_its_checks_ran_and_count(record: dict[str, Any]) -> None:
    own = [check for check in record["checks"]["checks"] if check["file"] == "test_acme_baseline"]
    assert [check["outcome"] for check in own] == ["passed"] * 3
    assert len(own) < record["checks"]["passed"]


def test_its_packages_file_and_unit_are_on_the_image(record: dict[str, Any]) -> None:
    info = record["versions"]
    assert {"jq", "tmux"} <= {package["name"] for package in info["packages"]}
    assert info["files"]["/etc/acme/banner"].startswith("sha256:")
    assert {"name": "acme-boot.service", "state": "enabled"} in info["units"]
    assert info["components"]["acme-baseline"]["site"] == "fra"
    assert "acme-baseline" in record["recipe"]["components"]


def test_it_is_in_the_bill_of_materials(
    record: dict[str, Any], environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "version-info.json").write_text(json.dumps(record["versions"]))
    done = commands.invoke("sbom", str(tmp_path / "version-info.json"), env=environment)
    parts = {part["name"]: part for part in json.loads(done.stdout)["components"]}
    assert any(
        "/etc/acme/banner" in entry["value"] for entry in parts["acme-baseline"]["properties"]
    )


def test_what_hygiene_stops_is_not_kept_where_nobody_could_log_in(
    environment: dict[str, str], script: Path, record: dict[str, Any]
) -> None:
    right = script.read_text()
    script.write_text(f"{right}echo {'AKIA' + 16 * 'A'} >/etc/acme/credentials\n")
    status, answer, said = build(environment, "--on-error", "keep")
    script.write_text(right)
    assert status == 1
    assert "in hygiene: AWS access keys: /etc/acme/credentials" in answer["error"]["message"]
    assert "is not kept: cleanup has removed the keys, so nobody can log in" in said
    assert "kept: " not in answer["error"]["hint"]
    assert not list(Path(environment["KILN_BUILD_DIR"]).glob("*/*/run.json"))


def test_without_its_overlay_it_is_neither_booted_nor_verified(
    environment: dict[str, str], record: dict[str, Any]
) -> None:
    without = {**environment, "KILN_OVERLAY": ""}
    done = commands.invoke("verify", "--ami", record["ami_id"], env=without)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "has acme-baseline: nothing here checks that" in done.stderr
