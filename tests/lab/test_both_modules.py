"""The row with both kernel modules: baked once, booted as an old and as a new instance type.

The build itself checks it on the old one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import slim_matrix, users_environment

from kiln.matrix.load import load_recipes
from tests.unit import commands

ROW = next(recipe for recipe in load_recipes() if recipe.kernel_module == "both")
OLD, NEW = "p3dn.24xlarge", "p6-b200.48xlarge"


def run(matrix: Path, *arguments: str) -> dict[str, Any]:
    home = matrix.parent
    environment = users_environment(home) | {"KILN_MATRIX": str(matrix)}
    done = commands.invoke(*arguments, "--json", timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    records = sorted((home / "build" / ROW.name).glob("*/record.json"), key=os.path.getmtime)
    return json.loads(records[-1].read_text())


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slim_matrix(tmp_path_factory.mktemp("both"), "nvidia-repo", "nvidia-fabricmanager")


@pytest.fixture(scope="module")
def built(lab: Any, matrix: Path) -> dict[str, Any]:
    return run(matrix, "build", "--name", ROW.name, "--verify-instance-type", OLD)


def test_version_info_names_the_modules_of_both_kinds(built: dict[str, Any]) -> None:
    kernel = built["versions"]["kernel"]["boots"]
    kept = {
        (module["path"].split("/")[5], module["license"] == "NVIDIA", module["version"])
        for module in built["versions"]["modules"]
        if module["path"].startswith(f"/opt/kiln/modules/{kernel}/") and module["name"] == "nvidia"
    }
    assert kept == {("open", False, ROW.driver), ("proprietary", True, ROW.driver)}


@pytest.mark.parametrize("instance_type", [OLD, NEW])
def test_the_same_ami_is_good_on(built: dict[str, Any], matrix: Path, instance_type: str) -> None:
    record = built
    if instance_type == NEW:
        verify = ("verify", "--ami", built["ami_id"], "--instance-type", instance_type)
        record = run(matrix, *verify)
    outcome = {check["name"]: check["outcome"] for check in record["checks"]["checks"]}
    assert (record["status"], record["verify_instance_type"]) == ("verified", instance_type)
    assert outcome["test_the_kernel_module_in_place_is_the_one_for_these_gpus"] == "passed"
