"""The overlay of docs/overlay.md, baked and booted: what it adds is on the image, and checked.

Its script is written as one writes a script: it hangs, it fails and its build instance is kept,
and then it is right.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import another_lab, lab_of_the_tests, users_environment

from tests.unit import commands
from tests.unit.matrix.overlays import written

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
    """A build of the page's row: exit status, JSON, what it said."""
    asked = ["build", "--name", ROW, "--json", *flags]
    done = commands.invoke(*asked, timeout=600, env=environment)
    return done.returncode, json.loads(done.stdout), done.stderr


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
    was sent there as the message has it, `swept` what sweep found and removed."""

    status: int
    hint: str
    record: dict[str, Any]
    on_it: str
    swept: dict[str, Any]


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
        [*ssh, *trust, "cat /etc/acme/banner"],
        capture_output=True,
        text=True,
        check=False,
    )
    path = max(Path(environment["KILN_BUILD_DIR"]).glob("*/*/record.json"))
    sweep = next(line for line in error["hint"].splitlines() if "./invoke sweep" in line)
    asked = shlex.split(sweep.partition("./invoke ")[2])
    swept = commands.invoke(*asked, "--json", env=environment)
    return Failed(
        status,
        error["hint"],
        json.loads(path.read_text()),
        there.stdout,
        json.loads(swept.stdout),
    )


@pytest.fixture(scope="module")
def record(environment: dict[str, str], failed: Failed) -> dict[str, Any]:
    """The build of the page's own row."""
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
    assert lines[0].endswith("acme-baseline.sh line 8")
    assert "--time-limits acme-baseline=" in hung.error["hint"]
    assert (hung.record["status"], hung.record["failure"]["line"]) == ("failed", 8)
    assert hung.record["left"] == []


def test_failed_bake_keeps_its_instance_until_sweep(
    environment: dict[str, str], failed: Failed
) -> None:
    assert failed.status == 1
    assert "Property of Acme" in failed.on_it
    left = {f"{found['kind']} {found['id']}" for found in failed.swept["found"]}
    assert left == set(failed.record["left"])
    assert {found["kind"] for found in failed.swept["found"]} == {"instance", "security group"}
    assert (failed.swept["removed"], failed.swept["failed"]) == (failed.swept["found"], [])
    assert not list(Path(environment["KILN_BUILD_DIR"]).glob("*/*/run.json"))


def test_a_package_that_the_lab_lacks_is_named_alone_and_told_from_one_that_nobody_has(
    failed: Failed,
) -> None:
    assert failed.record["failure"]["message"].endswith("has a package named chrony")
    assert "the lab has no stand-in for chrony: it has " in failed.hint
    assert "own repositories may well have more" in failed.hint


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


def test_without_its_overlay_it_is_neither_booted_nor_verified(
    environment: dict[str, str], record: dict[str, Any]
) -> None:
    without = {**environment, "KILN_OVERLAY": ""}
    done = commands.invoke("verify", "--ami", record["ami_id"], env=without)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "has acme-baseline: nothing here checks that" in done.stderr
