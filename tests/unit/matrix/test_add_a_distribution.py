"""docs/add-a-distribution.md, walked in an overlay: the files of the page, in order.

The distribution has a name that no table of facts has: the page's own may be baked one day.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from kiln.base.paths import ROOT
from tests.unit import commands, unknown_distribution

NAME = "debian98-595.91.07-open-cuda13.2-base-x86_64"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A user's repository with the page's overlay, what `render` and `lock` write beside it."""
    top = tmp_path_factory.mktemp("company")
    files = unknown_distribution.files()
    assert list(files) == ["facts/distros.yaml", "facts/archives.yaml", "amis.yaml"]
    for name, text in files.items():
        (top / "overlay" / name).parent.mkdir(parents=True, exist_ok=True)
        (top / "overlay" / name).write_text(text)
    # Beside one row instead of all: they cost time only.
    rows, *_ = (ROOT / "amis.yaml").read_text().split("\namis:\n")
    (top / "amis.yaml").write_text(f"{rows}\namis:\n- {{distro: debian12, stack: lts}}\n")
    return {
        **os.environ,
        "KILN_MATRIX": str(top / "amis.yaml"),
        "KILN_OVERLAY": str(top / "overlay"),
        "KILN_LOCK": str(top / "amis.lock.yaml"),
        "KILN_PACKER_DIR": str(top / "packer"),
    }


def findings(environment: dict[str, str], *flags: str) -> tuple[int, dict[str, Any]]:
    """The exit status of `check`, and the findings of the row by rule."""
    done = commands.invoke("check", "--json", *flags, env=environment)
    mine = [finding for finding in json.loads(done.stdout)["findings"] if NAME in finding["rows"]]
    return done.returncode, {finding["rule"]: finding for finding in mine}


def test_the_row_is_untried_and_never_without_a_finding(environment: dict[str, str]) -> None:
    status, found = findings(environment)
    assert status == 0
    assert "Debian 98 was never baked" in found["UNTRIED"]["message"]
    assert {files["level"] for files in found.values()} == {"warning"}
    status, found = findings(environment, "--strict")
    assert (status, found["UNTRIED"]["level"]) == (2, "error")


def test_its_hcl_is_valid_and_its_plan_names_its_parent(environment: dict[str, str]) -> None:
    for words in (["lock", "--update"], ["render"], ["validate"]):
        done = commands.invoke(*words, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
    assert f"valid  {NAME}" in done.stdout
    asked = ["build", "--distro", "debian98", "--dry-run", "--target", "lab"]
    plan = commands.invoke(*asked, env={**environment, "KILN_LAB_INDEX": "54"})
    assert "/aws/service/debian/release/13/latest/amd64" in plan.stdout


def test_the_lab_says_at_once_that_it_has_no_guests_of_it(environment: dict[str, str]) -> None:
    asked = ["build", "--distro", "debian98", "--target", "lab", "--no-install"]
    done = commands.invoke(*asked, env={**environment, "KILN_LAB_INDEX": "54"})
    assert done.returncode != 0
    if "needs root" not in done.stderr and "is missing" not in done.stderr:
        assert "the lab has no base for distribution 'debian98'" in done.stderr
        assert "lab/rootfs/basefiles/distros.yaml" in done.stderr


def test_once_it_is_tried_the_finding_is_gone(environment: dict[str, str]) -> None:
    (line,) = re.findall(r"^```yaml\n(    tried: .*\n)```$", unknown_distribution.PAGE, re.M)
    path = Path(environment["KILN_OVERLAY"]) / "facts" / "distros.yaml"
    path.write_text(path.read_text() + line)
    status, found = findings(environment)
    assert status == 0
    assert "UNTRIED" not in found
