"""The policy: each rule holds on what render writes, and fails on an HCL that breaks it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kiln.base.errors import Finding
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.facts import table
from kiln.matrix import load
from kiln.packer import validate
from kiln.packer.render import render, write_inputs

SOURCE = "source.pkr.hcl"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    """The first row."""
    return load.load_recipes()[0]


@pytest.fixture
def folder(tmp_path: Path, recipe: Recipe) -> Path:
    """The first row's folder, with all that its HCL names."""
    return write_inputs(render(recipe), tmp_path)


def broken(folder: Path, pattern: str, by: str, file: str = SOURCE) -> list[Finding]:
    """The findings after one edit, which must have hit something."""
    path = folder / file
    text, count = re.subn(pattern, by, path.read_text(), flags=re.MULTILINE)
    assert count, f"{pattern} is not in {file}"
    path.write_text(text)
    return validate.check_policy(folder)


def test_what_render_writes_breaks_no_rule(folder: Path) -> None:
    assert validate.check_policy(folder) == []


# The rule, and an edit of the source that breaks it.
LAST = r"^  shutdown_behavior"
EDITS = [
    ("imdsv2-required", r'http_tokens( *)= "required"', r'http_tokens\1= "optional"'),
    ("imdsv2-required", r"^  metadata_options \{[^}]*\}\n", ""),
    ("imdsv2-required", r"^ *imds_support.*\n", ""),
    ("root-encrypted", r"encrypted( *)= true", r"encrypted\1= false"),
    ("root-encrypted", r"^ *encrypted .*\n", ""),
    ("root-encrypted", r"^  launch_block_device_mappings \{[^}]*\}\n", ""),
    ("ingress-closed", r"= var.ssh_source_cidrs$", r'= ["0.0.0.0/0"]'),
    # Packer's own default.
    ("ingress-closed", r"^ *temporary_security_group_source_cidrs.*\n", ""),
    ("no-identity", LAST, '  profile = "AKIAABCDEFGHIJKLMNOP"\n  shutdown_behavior'),
    ("no-identity", LAST, "  secret_key = var.region\n  shutdown_behavior"),
    ("not-public", r"force_deregister( *)= false", r"force_deregister\1= true"),
    ("not-public", LAST, '  ami_groups = ["all"]\n  shutdown_behavior'),
]


@pytest.mark.parametrize(("rule", "pattern", "by"), EDITS)
def test_an_edit_that_breaks_a_rule_is_found(
    folder: Path, rule: str, pattern: str, by: str
) -> None:
    findings = broken(folder, pattern, by)
    assert {finding.rule for finding in findings} >= {rule}
    assert all(f.file and f.line for f in findings)


def test_the_source_of_packer_1_6_is_judged_too(folder: Path) -> None:
    findings = broken(folder, r"encrypted( *)= true", "", "packer-1.6/source.pkr.hcl")
    assert [finding.rule for finding in findings] == ["root-encrypted"]


def test_a_finding_in_what_all_rows_share_names_the_shared_file(folder: Path) -> None:
    (finding,) = broken(folder, r"encrypted( *)= true", r"encrypted\1= false")
    lines = (folder / SOURCE).read_text().splitlines()
    assert finding.line
    assert lines[finding.line - 1].split() == ["encrypted", "=", "false"]
    assert finding.file == f"packer/shared/{SOURCE}"


def test_the_committed_rows_break_no_rule() -> None:
    rows = [ROOT / "packer" / recipe.line for recipe in load.load_recipes()]
    assert [str(f) for row in rows for f in validate.check_policy(row)] == []


def test_every_rule_is_broken_by_a_test_here() -> None:
    rules = {rule for rule, _ in validate._POLICY.values()}
    assert rules == {rule for rule, _, _ in EDITS}


def test_the_page_about_aws_names_the_versions_of_the_plugin_that_the_facts_have() -> None:
    plugin = table("packer")["plugin"]
    text = f"({plugin['floor']} up to, not including, {plugin['ceiling']})"
    assert text in (ROOT / "docs/aws.md").read_text()
