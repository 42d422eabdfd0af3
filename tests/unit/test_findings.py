"""What a person is told: each cause once, where the wrong value stands, readable in a terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from invoke import Context, Exit

from kiln.base.errors import Finding, Place, by_cause, findings_lines, gravest_last
from kiln.cli import matrix as checks
from kiln.compat import engine
from kiln.matrix import load

LABELS = 12
TODAY = date(2026, 11, 21)
STACK = """\
defaults:
  instance_type: {x86_64: g4dn.xlarge, arm64: g5g.xlarge}
stacks:
  old:
    driver: 570.211.01
    kernel_module: open
    cuda: 12.8.1
amis:
- {distro: al2023, stack: old, arches: [x86_64, arm64]}
- {distro: ubuntu2404, stack: old, without: [lustre-client]}
"""


def found(tmp_path: Path, text: str = STACK) -> list[Finding]:
    (tmp_path / "amis.yaml").write_text(text)
    recipes = load.load_recipes(tmp_path / "amis.yaml")
    return engine.check_matrix(recipes, today=TODAY)


def test_a_stack_with_an_old_driver_is_one_finding_at_that_line_with_all_its_amis(
    tmp_path: Path,
) -> None:
    (finding,) = [item for item in found(tmp_path) if item.rule == "DRV-EOL"]
    assert (str(finding.place), finding.path) == ("amis.yaml:5:13", "stacks.old.driver")
    assert len(finding.rows) == 3
    assert finding.also_at == ()


def test_an_override_in_the_row_is_blamed_and_not_the_stack(tmp_path: Path) -> None:
    text = STACK.replace("stack: old, arches: [x86_64, arm64]", "stack: old, cuda: 13.0.2")
    (finding,) = [item for item in found(tmp_path, text) if item.rule == "DRV-CUDA-MAJOR"]
    assert finding.path == "amis.0.cuda"
    assert finding.rows == ("al2023-570.211.01-open-cuda13.0-base-x86_64",)


def test_the_same_value_in_several_rows_is_one_finding_that_names_every_place(
    tmp_path: Path,
) -> None:
    second = "- {distro: debian12, stack: old, cuda: 12.6.3, line: old-12-6}"
    text = STACK + "- {distro: debian12, stack: old}\n" + second
    (finding,) = [item for item in found(tmp_path, text) if item.rule == "OS-EOL"]
    assert (finding.line, [place.line for place in finding.also_at]) == (11, [12])


def test_two_causes_stay_two_findings() -> None:
    first = Finding("warning", "X", "driver 1 is old", rows=("a",))
    other = Finding("warning", "X", "driver 2 is old", rows=("b",))
    assert by_cause([first, other, first]) == [first, other]


def test_errors_come_last_and_the_order_stays_otherwise() -> None:
    output = [Finding("error", "A", ""), Finding("warning", "B", ""), Finding("error", "C", "")]
    assert [finding.rule for finding in gravest_last(output)] == ["B", "A", "C"]


def test_the_first_line_is_place_rule_and_message_and_the_rest_is_labelled() -> None:
    finding = Finding(
        "warning", "X", "it is old", "take a new one", ("row",), why="no fixes", source="a page"
    ).at(Place("amis.yaml", 5, 13, "stacks.old.driver"))
    assert str(finding).splitlines() == [
        "amis.yaml:5:13: warning: X: it is old",
        "    why     no fixes",
        "    fix     take a new one",
        "    source  a page",
        "    AMIs    row",
    ]


def test_findings_of_a_rule_share_their_reasons() -> None:
    old = Finding("warning", "X", "1 is old", "take 3", ("a", "b"), why="no fixes", source="page")
    older = replace(old, message="0 is old", rows=("c",), source="another page")
    findings = [old.at(Place("m.yaml", 5, 13, "s.driver")), older.at(Place("m.yaml", 7))]
    other = Finding("warning", "Y", "odd", "change it", ("a",))
    assert findings_lines([findings[0], other, findings[1]]) == [
        "m.yaml:5:13: warning: X: 1 is old",
        "    why     no fixes",
        "    fix     take 3",
        "    source  page",
        "    AMIs    a, b",
        "m.yaml:7: warning: X: 0 is old",
        "    source  another page",
        "    AMIs    c",
        "",
        *str(other).splitlines(),
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_todays_matrix_fits_a_terminal_of(width: int) -> None:
    text = checks.findings_text(checks.check_answer({}, strict=False), width)
    # A word alone behind its label, such as a URL, may be wider than the terminal.
    assert [
        line for line in text.splitlines() if len(line) > width and " " in line[LABELS:].strip()
    ] == []


def test_todays_matrix_says_each_thing_once() -> None:
    findings = checks.check_answer({}, strict=False)["findings"]
    output = [(finding["rule"], finding["message"]) for finding in findings]
    assert len(output) == len(set(output))
    assert all(finding["path"] and finding["rows"] and finding["source"] for finding in findings)


def test_the_json_of_a_finding_is_plain_data() -> None:
    finding = Finding("error", "X", "m", rows=("a",), also_at=(Place("f", 1, 2, "p"),))
    data = json.loads(json.dumps(finding.as_json()))
    assert data["rows"] == ["a"]
    assert data["also_at"] == [{"file": "f", "line": 1, "column": 2, "path": "p"}]


def test_an_error_is_invalid_input() -> None:
    checks.check(Context(), distro="al2023", driver="580.178.04")
    with pytest.raises(Exit) as ended:
        checks.check(Context(), distro="al2", driver="510.47.03", cuda="12.2")
    assert ended.value.code == 2


def test_the_last_line_counts_what_was_found() -> None:
    answer = checks.check_answer(
        {"distro": "al2", "driver": "510.47.03", "cuda": "12.2"}, strict=False
    )
    last = checks.findings_text(answer).splitlines()[-1]
    assert last == "this combination: cannot work (1 error, 2 warnings)"


def test_a_combination_is_said_not_to_be_asked_for_its_packages() -> None:
    answer = {"findings": [], "instance_types": ["g5.xlarge"], "unconfirmed_facts": 0}
    assert "not judged: whether its packages are published" in checks.findings_text(answer)
    matrix = {**answer, "amis": 1}
    assert "not judged" not in checks.findings_text(matrix)
