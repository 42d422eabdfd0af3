"""The overlay of docs/overlay.md, baked and booted: what it adds is on the image, and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
def record(environment: dict[str, str]) -> dict[str, Any]:
    """The build of the page's own row."""
    done = commands.invoke("build", "--name", ROW, "--json", timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    only: dict[str, Any] = json.loads(done.stdout)[0]
    return only


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
