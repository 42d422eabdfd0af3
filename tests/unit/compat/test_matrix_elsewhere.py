"""What `KILN_MATRIX` moves is named by its path in messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kiln.base.paths import ROOT
from kiln.compat.engine import check_matrix
from kiln.matrix.load import load_recipes


def test_finding_names_the_matrix_that_kiln_matrix_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = yaml.safe_load((ROOT / "amis.yaml").read_text())
    row = {"distro": "al2023", "stack": "lts", "driver": "510.47.03"}
    rows = [{**row, "target_instance_types": ["p5.48xlarge"]}]
    matrix = tmp_path / "amis.yaml"
    matrix.write_text(yaml.safe_dump({**data, "amis": rows}))
    monkeypatch.setenv("KILN_MATRIX", str(matrix))
    places = {finding.place for finding in check_matrix(load_recipes()) if finding.place}
    assert {place.file for place in places if place.path} == {str(matrix)}
