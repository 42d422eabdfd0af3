"""docs/compatibility.md says what the engine does."""

import json
import re
import shutil
from datetime import date

import pytest
import yaml

from kiln.base.paths import KNOWLEDGE, ROOT
from kiln.compat import rules
from kiln.compat.engine import check_combination, check_matrix
from kiln.facts import tables
from kiln.matrix import load
from tests.unit import caches

DOC = (ROOT / "docs" / "compatibility.md").read_text()
NEW = "580.190.01"


@pytest.fixture
def knowledge(tmp_path, monkeypatch):
    """A copy of the facts to change; the caches are emptied before and after."""
    copy = tmp_path / "knowledge"
    shutil.copytree(KNOWLEDGE, copy)
    monkeypatch.setattr(tables, "KNOWLEDGE", copy)
    caches.forget()
    yield copy
    caches.forget()


def rules_of(driver):
    result = check_combination("al2023", driver, cuda="13.0", today=date(2026, 11, 21))
    return {finding["rule"] for finding in result["findings"]}


def test_a_driver_version_is_added_by_the_line_the_page_shows(knowledge):
    assert "DRV-UNKNOWN" in rules_of(NEW)
    shown = next(line for line in DOC.splitlines() if line.strip().startswith(f"{NEW}:"))
    path = knowledge / "drivers.yaml"
    text = path.read_text()
    head, tail = text.split("  '580':\n", 1)
    before, after = tail.split("    versions:\n", 1)
    line = "      " + shown.strip() + "\n"
    path.write_text(f"{head}  '580':\n{before}    versions:\n{line}{after}")
    caches.forget()
    assert rules_of(NEW) == set()


def test_the_page_lists_every_rule():
    for rule in rules().values():
        assert f"| {rule.id} | {rule.level}" in DOC
        assert rule.what in DOC


def test_the_json_on_the_page_is_what_comes_out():
    block = DOC.split("```json\n", 1)[1].split("```", 1)[0]
    expected = yaml.safe_load(block)
    result = check_combination("al2", "510.47.03", cuda="12.2", today=date(2026, 11, 21))
    errors = [finding for finding in result["findings"] if finding["level"] == "error"]
    assert json.loads(json.dumps({**result, "findings": errors})) == expected


def test_the_finding_on_the_page_is_what_comes_out():
    shown = next(block for block in DOC.split("```") if "warning: DRV-EOL" in block).strip()
    findings = check_matrix(load.load_recipes(), today=date(2026, 11, 21))
    # Where the stack stands in amis.yaml today does not matter.
    printed = [re.sub(r"^amis.yaml:\d+", "amis.yaml:52", str(finding)) for finding in findings]
    assert shown in printed
