"""docs/compatibility.md says what the engine does."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
import yaml

from kiln.base.paths import KNOWLEDGE, ROOT
from kiln.compat import rules
from kiln.compat.engine import check_combination, check_matrix
from kiln.facts import tables
from kiln.matrix import load
from tests.unit import caches

DOC = (ROOT / "docs" / "compatibility.md").read_text()
TODAY = date(2026, 11, 21)


@pytest.fixture
def knowledge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the facts to change; the caches are emptied before and after."""
    copy = tmp_path / "knowledge"
    shutil.copytree(KNOWLEDGE, copy)
    monkeypatch.setattr(tables, "KNOWLEDGE", copy)
    caches.forget()
    yield copy
    caches.forget()


def test_line_of_the_page_adds_a_driver(knowledge: Path) -> None:
    new = "580.190.01"

    def found() -> set[str]:
        answer = check_combination("al2023", new, cuda="13.0", today=TODAY)
        return {finding["rule"] for finding in answer["findings"]}

    assert "DRV-UNKNOWN" in found()
    (line,) = re.findall(rf"^ *({new}:.*)", DOC, re.MULTILINE)
    path = knowledge / "drivers.yaml"
    branch = re.compile(r"(\n  '580':\n.*?\n    versions:\n)", re.DOTALL)
    path.write_text(branch.sub(rf"\g<1>      {line}\n", path.read_text(), count=1))
    caches.forget()
    assert found() == set()


def test_page_lists_every_rule() -> None:
    for rule in rules().values():
        assert f"| {rule.id} | {rule.level}" in DOC
        assert rule.what in DOC


def test_page_shows_json_and_a_finding_as_printed() -> None:
    block = DOC.split("```json\n", 1)[1].split("```", 1)[0]
    result = check_combination("al2", "510.47.03", cuda="12.2", today=TODAY)
    errors = [finding for finding in result["findings"] if finding["level"] == "error"]
    assert json.loads(json.dumps({**result, "findings": errors})) == yaml.safe_load(block)
    shown = next(block for block in DOC.split("```") if "warning: DRV-EOL" in block).strip()
    findings = check_matrix(load.load_recipes(), today=TODAY)
    # Where the stack stands in amis.yaml today does not matter.
    assert shown in [re.sub(r"^amis.yaml:\d+", "amis.yaml:52", str(each)) for each in findings]
