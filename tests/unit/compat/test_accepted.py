"""`accept` in a row: a warning that it knows, for a reason and until a day."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from kiln.base.errors import Finding, KilnError
from kiln.cli.matrix import findings_text
from kiln.compat.engine import UNCONFIRMED, check_matrix
from kiln.matrix.load import load_recipes

MATRIX = """\
defaults:
  instance_type: {x86_64: g4dn.xlarge}
stacks:
  old: {driver: 550.163.01, driver_source: runfile, kernel_module: proprietary}
amis:
- distro: al2
  stack: old
  target_instance_types: [g4dn.xlarge]
  without: [nvidia-fabricmanager]
"""
DRV = "  - {rule: DRV-EOL, reason: the cluster moves in March, until: 2027-03-31}\n"
OS = "  - {rule: OS-EOL, reason: extended contract, until: 2027-03-31}\n"


def checked(
    tmp_path: Path, *accept: str, today: date = date(2026, 11, 23), matrix: str = MATRIX
) -> list[Finding]:
    (tmp_path / "amis.yaml").write_text(
        "".join([matrix, *(["  accept:\n"] if accept else []), *accept])
    )
    findings = check_matrix(load_recipes(tmp_path / "amis.yaml"), today=today, strict=True)
    return [finding for finding in findings if finding.rule != UNCONFIRMED]


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.rule: finding.level for finding in findings}


def test_accepted_warning_is_no_error_with_strict(tmp_path: Path) -> None:
    assert levels(checked(tmp_path)) == {"DRV-EOL": "error", "OS-EOL": "error"}
    findings = checked(tmp_path, DRV, OS)
    assert levels(findings) == {"DRV-EOL": "accepted", "OS-EOL": "accepted"}
    assert findings[0].hint == "accepted until 2027-03-31: the cluster moves in March"
    answer = {"findings": [f.to_dict() for f in findings], "instance_types": [], "amis": 1}
    text = findings_text({**answer, "unconfirmed_facts": 0})
    assert text.splitlines()[:2] == [
        "1 AMI: valid (0 errors, 0 warnings)",
        "2 accepted warnings: ./invoke check --verbose",
    ]


def test_expired_acceptance_is_an_error_at_its_line(tmp_path: Path) -> None:
    last_day = checked(tmp_path, DRV, OS, today=date(2027, 3, 31))
    assert levels(last_day) == {"DRV-EOL": "accepted", "OS-EOL": "accepted"}
    findings = checked(tmp_path, DRV, OS, today=date(2027, 4, 1))
    assert levels(findings)["DRV-EOL"] == "error"
    expired = next(finding for finding in findings if finding.rule == "ACCEPT-EXPIRED")
    assert (str(expired.place), expired.level) == ("amis.yaml:11:5", "error")
    assert "the cluster moves in March" in expired.message


def test_acceptance_without_its_warning_is_a_warning(tmp_path: Path) -> None:
    findings = checked(tmp_path, DRV, OS, DRV.replace("DRV-EOL", "DRV-EOLL"))
    unused = next(finding for finding in findings if finding.rule == "ACCEPT-UNUSED")
    assert (unused.level, unused.line) == ("warning", 13)
    assert "did you mean 'DRV-EOL'?" in unused.hint


def test_error_cannot_be_accepted(tmp_path: Path) -> None:
    matrix = MATRIX.replace("[g4dn.xlarge]", "[p6-b200.48xlarge]")
    entry = DRV.replace("DRV-EOL", "GPU-BLACKWELL-OPEN")
    assert levels(checked(tmp_path, entry, matrix=matrix))["GPU-BLACKWELL-OPEN"] == "error"


def test_acceptance_keeps_the_digest(tmp_path: Path) -> None:
    digests = set()
    for accept in ("", f"  accept:\n{DRV}"):
        (tmp_path / "amis.yaml").write_text(MATRIX + accept)
        digests.add(load_recipes(tmp_path / "amis.yaml")[0].digest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{rule: DRV-EOL, reason: x, until: 2027-02-30}", "11:39: amis.0.accept.0.until: "),
        ("DRV-EOL", "11:5: amis.0.accept.0: must be a mapping"),
    ],
)
def test_wrong_entry_is_one_message(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(KilnError) as refused:
        checked(tmp_path, f"  - {entry}\n")
    assert message in refused.value.message
