"""Findings: each cause once, at its place, readable in a terminal and by a program."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from kiln.base.errors import Finding, Place, by_cause, findings_lines, gravest_last
from kiln.cli import matrix as checks
from kiln.compat import engine
from kiln.matrix import load

LABELS = 12
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
DEBIAN = """\
- {distro: debian12, stack: old}
- {distro: debian12, stack: old, cuda: 12.6.3, line: old-12-6}
"""


def found(tmp_path: Path, rule: str, text: str = STACK) -> Finding:
    """The one finding of a rule."""
    (tmp_path / "amis.yaml").write_text(text)
    recipes = load.load_recipes(tmp_path / "amis.yaml")
    findings = engine.check_matrix(recipes, today=date(2026, 11, 21))
    (finding,) = [each for each in findings if each.rule == rule]
    return finding


def test_cause_in_a_stack_is_one_finding_at_its_line(tmp_path: Path) -> None:
    finding = found(tmp_path, "DRV-EOL")
    assert (str(finding.place), finding.path) == ("amis.yaml:5:13", "stacks.old.driver")
    assert (len(finding.rows), finding.also_at) == (3, ())


def test_override_in_a_row_is_blamed(tmp_path: Path) -> None:
    text = STACK.replace("stack: old, arches: [x86_64, arm64]", "stack: old, cuda: 13.0.2")
    finding = found(tmp_path, "DRV-CUDA-MAJOR", text)
    assert finding.path == "amis.0.cuda"
    assert finding.rows == ("al2023-570.211.01-open-cuda13.0-base-x86_64",)


def test_same_value_in_several_rows_is_one_finding(tmp_path: Path) -> None:
    finding = found(tmp_path, "OS-EOL", STACK + DEBIAN)
    assert (finding.line, [place.line for place in finding.also_at]) == (11, [12])


def test_two_causes_stay_two_findings_and_errors_come_last() -> None:
    first = Finding("warning", "X", "driver 1 is old", rows=("a",))
    other = Finding("warning", "X", "driver 2 is old", rows=("b",))
    assert by_cause([first, other, first]) == [first, other]
    output = [Finding("error", "A", ""), Finding("warning", "B", ""), Finding("error", "C", "")]
    assert [finding.rule for finding in gravest_last(output)] == ["B", "A", "C"]


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


@pytest.mark.parametrize("width", [60, 120])
def test_findings_of_the_matrix_fit_a_terminal(width: int) -> None:
    answer = checks.check_answer({}, strict=False)
    text = checks.findings_text(answer, width)
    # A word alone behind its label, such as a URL, may be wider than the terminal.
    assert [
        line for line in text.splitlines() if len(line) > width and " " in line[LABELS:].strip()
    ] == []
    output = [(finding["rule"], finding["message"]) for finding in answer["findings"]]
    assert len(output) == len(set(output))


def test_first_line_is_the_verdict() -> None:
    answer = checks.check_answer(
        {"distro": "al2", "driver": "510.47.03", "cuda": "12.2"}, strict=False
    )
    text = checks.findings_text(answer)
    assert text.splitlines()[0] == "this combination: cannot work (1 error, 2 warnings)"
    # A combination is not asked for its packages; a matrix is, by preflight.
    answer = {"findings": [], "instance_types": ["g5.xlarge"], "unconfirmed_facts": 0}
    assert "not judged" in checks.findings_text(answer)
    assert "not judged" not in checks.findings_text({**answer, "amis": 1})
