"""What `KILN_MATRIX`, `KILN_LOCK` and `KILN_PACKER_DIR` move is named by its path in messages, and
what is in the checkout as it is typed there."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.compat.engine import check_matrix
from kiln.facts.lock_file import read_lock_file
from kiln.matrix.load import load_recipes
from kiln.packer import lock
from kiln.packer.lock_diff import compare_locks

RECIPES = load_recipes(ROOT / "amis.yaml")
# The hash of this URL is published, so a lock with another one is wrong.
EFA = "https://efa-installer.amazonaws.com/aws-efa-installer-1.34.0.tar.gz"


@pytest.fixture
def lock_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KILN_LOCK", str(tmp_path / "lock.yaml"))
    return tmp_path / "lock.yaml"


def test_a_finding_about_a_matrix_elsewhere_names_that_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = yaml.safe_load((ROOT / "amis.yaml").read_text())
    rows = [
        {
            "distro": "al2023",
            "stack": "lts",
            "target_instance_types": ["p5.48xlarge"],
            "driver": "510.47.03",
        }
    ]
    matrix = tmp_path / "amis.yaml"
    matrix.write_text(yaml.safe_dump({**data, "amis": rows}))
    monkeypatch.setenv("KILN_MATRIX", str(matrix))
    places = {finding.place for finding in check_matrix(load_recipes()) if finding.place}
    assert {place.file for place in places if place.path} == {str(matrix)}


@pytest.mark.parametrize("text", ["{", "artifacts: none"])
def test_a_broken_lock_elsewhere_is_named_and_no_file_of_the_checkout_is_to_be_restored(
    lock_elsewhere: Path, text: str
) -> None:
    lock_elsewhere.write_text(text)
    with pytest.raises(KilnError, match=rf"^{lock_elsewhere}:\d+:\d+: ") as error:
        read_lock_file()
    assert error.value.hint == f"restore {lock_elsewhere} from its repository or a backup"


def test_a_broken_lock_of_the_checkout_is_restored_from_git(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KILN_LOCK", str(ROOT / "tests/unit/test_moved_files.py"))
    with pytest.raises(KilnError, match=r"^tests/unit/test_moved_files\.py:") as error:
        read_lock_file()
    assert error.value.hint == "restore it: git checkout tests/unit/test_moved_files.py"


def test_a_lock_elsewhere_is_the_one_that_is_up_to_date(lock_elsewhere: Path) -> None:
    empty = {"artifacts": [], "packages": []}
    assert compare_locks(empty, empty).as_text() == f"{lock_elsewhere} is up to date"


def test_a_locked_hash_that_the_vendor_did_not_publish_is_in_the_lock_elsewhere(
    lock_elsewhere: Path,
) -> None:
    wrong = {"url": EFA, "version": "1.34.0", "sha256": "a" * 64, "source": "x"}
    classic = [recipe for recipe in RECIPES if recipe.efa == "1.34.0"]
    with pytest.raises(KilnError, match=rf"^{lock_elsewhere}: {EFA} is locked") as error:
        lock.plan_lock(classic, {"artifacts": [wrong], "packages": []})
    assert f"restore {lock_elsewhere} from" in error.value.hint
