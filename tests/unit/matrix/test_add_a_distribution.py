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
from tests.unit import commands
from tests.unit.matrix.overlays import DISTRIBUTION_PAGE, unknown_distribution, write

pytestmark = pytest.mark.slow
NAME = "debian98-595.91.07-open-cuda13.2-base-x86_64"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A user's repository with the page's overlay, what `render` and `lock` write beside it."""
    top = tmp_path_factory.mktemp("company")
    files = unknown_distribution()
    assert list(files) == ["facts/distros.yaml", "facts/archives.yaml", "amis.yaml"]
    write(files, top / "overlay")
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


def findings(environment: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """The exit status of `check`, and the findings of the row by rule."""
    done = commands.invoke("check", "--json", env=environment)
    mine = [finding for finding in json.loads(done.stdout)["findings"] if NAME in finding["rows"]]
    return done.returncode, {finding["rule"]: finding for finding in mine}


def test_new_row_is_untried(environment: dict[str, str]) -> None:
    status, found = findings(environment)
    assert status == 0
    assert "Debian 98 was never baked" in found["UNTRIED"]["message"]
    assert {files["level"] for files in found.values()} == {"warning"}


def test_new_row_is_rendered_valid_and_planned(environment: dict[str, str]) -> None:
    for words in (["lock", "--update"], ["render"], ["validate"]):
        done = commands.invoke(*words, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
    assert f"valid  {NAME}" in done.stdout
    asked = ["build", "--distro", "debian98", "--dry-run", "--target", "lab"]
    plan = commands.invoke(*asked, env={**environment, "KILN_LAB_INDEX": "54"})
    assert "/aws/service/debian/release/13/latest/amd64" in plan.stdout


def test_tried_row_has_no_finding(environment: dict[str, str]) -> None:
    (line,) = re.findall(r"^```yaml\n(    tried: .*\n)```$", DISTRIBUTION_PAGE, re.M)
    path = Path(environment["KILN_OVERLAY"]) / "facts" / "distros.yaml"
    path.write_text(path.read_text() + line)
    status, found = findings(environment)
    assert status == 0
    assert "UNTRIED" not in found
