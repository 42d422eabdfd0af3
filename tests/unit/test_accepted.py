"""`accept` in a row: a warning that it knows, for a reason and until a day."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from kiln.base.errors import Finding, KilnError
from kiln.cli.matrix import findings_text
from kiln.compat.engine import check_matrix
from kiln.facts import table
from kiln.matrix.load import load_recipes

TODAY = date(2026, 11, 23)
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


def checked(tmp_path: Path, *accept: str, today: date = TODAY) -> list[Finding]:
    (tmp_path / "amis.yaml").write_text(
        MATRIX + ("  accept:\n" if accept else "") + "".join(accept)
    )
    findings = check_matrix(load_recipes(tmp_path / "amis.yaml"), today=today, strict=True)
    return [finding for finding in findings if finding.rule != "FACT-UNCONFIRMED"]


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.rule: finding.level for finding in findings}


def test_without_it_what_gets_no_fixes_is_an_error_with_strict(tmp_path: Path) -> None:
    assert levels(checked(tmp_path)) == {"DRV-EOL": "error", "OS-EOL": "error"}


def test_what_a_row_accepts_is_shown_with_reason_and_day_and_no_error(tmp_path: Path) -> None:
    findings = checked(tmp_path, DRV, OS)
    assert levels(findings) == {"DRV-EOL": "accepted", "OS-EOL": "accepted"}
    assert findings[0].hint == "accepted until 2027-03-31: the cluster moves in March"
    answer = {
        "findings": [f.as_json() for f in findings],
        "instance_types": [],
        "amis": 1,
        "unconfirmed_facts": 0,
    }
    assert findings_text(answer).endswith("1 AMIs: valid (0 errors, 0 warnings, 2 accepted)")


def test_an_expired_acceptance_is_an_error_at_its_line(tmp_path: Path) -> None:
    findings = checked(tmp_path, DRV, OS, today=date(2027, 4, 1))
    assert levels(findings)["DRV-EOL"] == "error"
    expired = [finding for finding in findings if finding.rule == "ACCEPT-EXPIRED"]
    assert str(expired[0]).startswith(
        "amis.yaml:11:5: error: ACCEPT-EXPIRED: DRV-EOL was accepted until 2027-03-31 only: the "
        "cluster moves in March"
    )
    last_day = levels(checked(tmp_path, DRV, OS, today=date(2027, 3, 31)))
    assert last_day == {"DRV-EOL": "accepted", "OS-EOL": "accepted"}


def test_an_acceptance_without_its_warning_is_a_warning(tmp_path: Path) -> None:
    findings = checked(tmp_path, DRV, OS, DRV.replace("DRV-EOL", "DRV-EOLL"))
    unused = next(finding for finding in findings if finding.rule == "ACCEPT-UNUSED")
    assert (unused.level, unused.line) == ("warning", 13)
    assert "did you mean 'DRV-EOL'?" in unused.hint


def test_an_error_cannot_be_accepted(tmp_path: Path) -> None:
    entry = DRV.replace("DRV-EOL", "GPU-BLACKWELL-OPEN")
    (tmp_path / "amis.yaml").write_text(
        MATRIX.replace("[g4dn.xlarge]", "[p6-b200.48xlarge]") + f"  accept:\n{entry}"
    )
    found = levels(check_matrix(load_recipes(tmp_path / "amis.yaml"), today=TODAY))
    assert found["GPU-BLACKWELL-OPEN"] == "error"


def test_it_does_not_make_another_ami(tmp_path: Path) -> None:
    digests = set()
    for accept in ("", f"  accept:\n{DRV}"):
        (tmp_path / "amis.yaml").write_text(MATRIX + accept)
        digests.add(load_recipes(tmp_path / "amis.yaml")[0].digest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "{rule: DRV-EOL, until: 2027-03-31}",
            "amis.yaml:11:5: amis.0.accept.0.reason is missing",
        ),
        (
            "{rule: DRV-EOL, reason: x, until: 2027-02-30}",
            "amis.yaml:11:39: amis.0.accept.0.until: Input should be a valid date",
        ),
        ("DRV-EOL", "amis.yaml:11:5: amis.0.accept.0: must be a mapping"),
        (
            "{rule: DRV-EOL, because: x, until: 2027-02-20}",
            "because: there is no such key here: known: reason, rule, until",
        ),
    ],
)
def test_an_entry_that_is_wrong_is_one_message(tmp_path: Path, entry: str, message: str) -> None:
    (tmp_path / "amis.yaml").write_text(f"{MATRIX}  accept:\n  - {entry}\n")
    with pytest.raises(KilnError) as refused:
        load_recipes(tmp_path / "amis.yaml")
    assert message in refused.value.message


def test_what_the_facts_call_tried_is_baked_by_a_row() -> None:
    # Not the other way round: until a new row was baked and checked, `check` calls it UNTRIED.
    baked = {(recipe.distro.id, recipe.flavor, recipe.arch) for recipe in load_recipes()}
    tried = {
        (name, flavor, arch)
        for name, entry in table("distros")["distros"].items()
        for flavor, arches in entry.get("tried", {}).items()
        for arch in arches
    }
    assert tried
    assert tried <= baked
