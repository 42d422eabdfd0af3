"""The overlay of docs/overlay.md, baked and booted: what it adds is on the image, and checked.

Its row has both kernel modules: the build checks it on an old instance type, and then a new one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import another_lab, lab_of_the_tests, users_environment

from kiln import components
from kiln.matrix.load import load_recipes
from tests.unit import commands
from tests.unit.matrix.overlays import written

pytestmark = pytest.mark.all
ROW = "al2023-580.999.01-both-base-x86_64"
OLD, NEW = "p3dn.24xlarge", "p6-b200.48xlarge"
PAGES = "acme: {driver: 580.999.01, kernel_module: open}", "target_instance_types: [g5.xlarge]"
NVLSM = next(recipe.nvlsm for recipe in load_recipes() if recipe.kernel_module == "both")
# What the row is not about: its bake takes half the time.
SPARED = {each.name for each in components.everything() if each.optional} - {
    *("nvidia-repo", "nvidia-fabricmanager")
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The page's overlay, and a lab of its own: one that runs does not get other facts."""
    lab_of_the_tests()
    home = tmp_path_factory.mktemp("overlay")
    rows = written(home / "acme") / "amis.yaml"
    text = rows.read_text()
    assert all(part in text for part in PAGES)
    text = text.replace("kernel_module: open", f"kernel_module: both, nvlsm: {NVLSM}").replace(
        PAGES[1], f"target_instance_types: [{OLD}, {NEW}], without: [{', '.join(sorted(SPARED))}]"
    )
    rows.write_text(text)
    env = users_environment(home) | {
        "KILN_OVERLAY": str(home / "acme"),
        "KILN_LAB_INDEX": str(another_lab(__file__).index),
    }
    yield env
    commands.invoke("lab.clean", "--force", env=env)


@pytest.fixture(scope="module")
def record(environment: dict[str, str]) -> dict[str, Any]:
    """The build of the page's row."""
    build = ("build", "--name", ROW, "--verify-instance-type", OLD, "--json")
    done = commands.invoke(*build, timeout=600, env=environment)
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


def test_version_info_names_the_modules_of_both_kinds(record: dict[str, Any]) -> None:
    kernel, driver = record["versions"]["kernel"]["boots"], record["recipe"]["driver"]
    kept = {
        (module["path"].split("/")[5], module["license"] == "NVIDIA", module["version"])
        for module in record["versions"]["modules"]
        if module["path"].startswith(f"/opt/kiln/modules/{kernel}/") and module["name"] == "nvidia"
    }
    assert kept == {("open", False, driver), ("proprietary", True, driver)}


@pytest.mark.parametrize("instance_type", [OLD, NEW])
def test_the_same_ami_is_good_on(
    record: dict[str, Any], environment: dict[str, str], instance_type: str
) -> None:
    if instance_type == NEW:
        verify = ("verify", "--ami", record["ami_id"], "--instance-type", NEW, "--json")
        done = commands.invoke(*verify, timeout=600, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        record = json.loads(done.stdout)
    outcome = {check["name"]: check["outcome"] for check in record["checks"]["checks"]}
    assert (record["status"], record["verify_instance_type"]) == ("verified", instance_type)
    assert outcome["test_the_kernel_module_in_place_is_the_one_for_these_gpus"] == "passed"


def test_without_its_overlay_it_is_neither_booted_nor_verified(
    environment: dict[str, str], record: dict[str, Any]
) -> None:
    without = {**environment, "KILN_OVERLAY": ""}
    done = commands.invoke("verify", "--ami", record["ami_id"], env=without)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "has acme-baseline: nothing here checks that" in done.stderr
