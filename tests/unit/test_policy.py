"""The policy: each rule holds on what render writes, and fails on an HCL that breaks it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kiln.base.findings import Finding
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.facts import table
from kiln.matrix import load
from kiln.packer import policy
from kiln.packer.folders import write_inputs

SOURCE, BUILD, VARIABLES = "source.pkr.hcl", "build.pkr.hcl", "variables.pkr.hcl"
OWN = "recipe.pkr.hcl"


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    """The first row."""
    return load.load_recipes()[0]


@pytest.fixture
def folder(tmp_path: Path, recipe: Recipe) -> Path:
    """The first row's folder, with all that its HCL names."""
    return write_inputs(recipe, tmp_path)


def broken(folder: Path, pattern: str, by: str, file: str = SOURCE) -> list[Finding]:
    """The findings after one edit, which must have hit something."""
    path = folder / file
    text, count = re.subn(pattern, by, path.read_text(), flags=re.MULTILINE)
    assert count, f"{pattern} is not in {file}"
    path.write_text(text)
    return policy.check_policy(folder)


def test_what_render_writes_breaks_no_rule(folder: Path) -> None:
    assert policy.check_policy(folder) == []


EDITS = {
    "IMDSv1 on the builder": (
        "imdsv2-required",
        SOURCE,
        r'http_tokens( *)= "required"',
        r'http_tokens\1= "optional"',
    ),
    "no metadata options at all": (
        "imdsv2-required",
        SOURCE,
        r"^  metadata_options \{[^}]*\}\n",
        "",
    ),
    "AMI without imds_support": ("imdsv2-required", SOURCE, r"^ *imds_support.*\n", ""),
    "unencrypted root": (
        "root-encrypted",
        SOURCE,
        r"encrypted( *)= true",
        r"encrypted\1= false",
    ),
    "encryption left out": ("root-encrypted", SOURCE, r"^ *encrypted .*\n", ""),
    "no block devices": (
        "root-encrypted",
        SOURCE,
        r"^  launch_block_device_mappings \{[^}]*\}\n",
        "",
    ),
    "IPv4 world in": (
        "ingress-closed",
        SOURCE,
        r"= var.ssh_source_cidrs$",
        r'= ["0.0.0.0/0"]',
    ),
    "IPv6 world in": ("ingress-closed", SOURCE, r"= var.ssh_source_cidrs$", r'= ["::/0"]'),
    "Packer's own default": (
        "ingress-closed",
        SOURCE,
        r"^ *temporary_security_group_source_cidrs.*\n",
        "",
    ),
    "no addresses as default": (
        "ingress-closed",
        VARIABLES,
        r'^variable "ssh_source_cidrs" \{',
        'variable "ssh_source_cidrs" {\n  default = []',
    ),
    "latest in a URL": (
        "no-latest",
        OWN,
        r'NVIDIA_DRIVER = ".*"',
        r'NVIDIA_DRIVER = "https://x.example/latest/d.run"',
    ),
    "a package called latest without a version": (
        "no-latest",
        OWN,
        r'NVIDIA_DRIVER_PACKAGES = ".*"',
        r'NVIDIA_DRIVER_PACKAGES = "kmod-nvidia-latest-dkms"',
    ),
    "access key": (
        "no-identity",
        SOURCE,
        r"^  shutdown_behavior",
        '  profile = "AKIAABCDEFGHIJKLMNOP"\n  shutdown_behavior',
    ),
    "credentials as attributes": (
        "no-identity",
        SOURCE,
        r"^  shutdown_behavior",
        "  secret_key = var.region\n  shutdown_behavior",
    ),
    "account id": (
        "no-identity",
        SOURCE,
        r"kms_key_id( *)= var.kms_key_id",
        r'kms_key_id\1= "arn:aws:kms:us-east-1:123456789012:key/k"',
    ),
    "forced deregistration": (
        "nothing-forced",
        SOURCE,
        r"force_deregister( *)= false",
        r"force_deregister\1= true",
    ),
    "public image": (
        "not-public",
        SOURCE,
        r"^  shutdown_behavior",
        '  ami_groups = ["all"]\n  shutdown_behavior',
    ),
    "no manifest": (
        "manifest-kept",
        BUILD,
        r'post-processor "manifest"',
        'post-processor "checksum"',
    ),
    "provisioner that is not there": (
        "provisioner-exists",
        BUILD,
        r"provisioners/cuda\.sh",
        "provisioners/cudda.sh",
    ),
    "folder to upload that is not there": (
        "provisioner-exists",
        BUILD,
        r"/runtime-variants",
        "/runtime-variance",
    ),
    "something after the clean-up": (
        "cleaned-last",
        BUILD,
        r"provisioners/hygiene\.sh",
        "provisioners/nccl.sh",
    ),
    "a row without the clean-up": ("cleaned-last", OWN, r"^ *\"?cleanup\"? *= \{\}\n", ""),
    "a component that nothing bakes": ("components-baked", OWN, r"\bcudnn\b", "cudn"),
    "a row without a list of components": ("components-baked", OWN, r"^  components", "  parts"),
    "malformed": ("hcl-syntax", SOURCE, r"^  shutdown_behavior .*", "  shutdown_behavior ="),
}


@pytest.mark.parametrize(("rule", "file", "pattern", "by"), EDITS.values(), ids=EDITS.keys())
def test_an_edit_that_breaks_a_rule_is_found(
    folder: Path, rule: str, file: str, pattern: str, by: str
) -> None:
    findings = broken(folder, pattern, by, file)
    assert {finding.rule for finding in findings} >= {rule}
    assert all(f.file and f.line for f in findings)


@pytest.mark.parametrize(
    ("file", "pattern", "by"),
    [
        (SOURCE, r"^  metadata_options \{", "  metadata_options = {"),
        (SOURCE, r"^  launch_block_device_mappings \{", "  launch_block_device_mappings = {"),
        (SOURCE, r"^source .*", 'source "amazon-ebs" {'),
        (SOURCE, r"^(  imds_support)", r"  ami_groups = null\n\1"),
        (BUILD, r"^  tags = \{", "  tags = merge({}, {"),
        (BUILD, r'^  post-processor "manifest" \{', "  post-processor = {"),
        ("plugins.pkr.hcl", r"^  required_plugins \{", "  required_plugins = {"),
        ("plugins.pkr.hcl", r"= \{[^}]*\}", '= ">= 1.2"'),
    ],
)
def test_a_form_that_packer_would_refuse_is_not_the_programs_error(
    folder: Path, file: str, pattern: str, by: str
) -> None:
    """`packer validate` says what is wrong with it; the policy must let it."""
    text = (folder / file).read_text()
    if by.endswith("merge({}, {"):
        (folder / file).write_text(re.sub(r"(?s)(  tags = \{.*?\n  \})", r"\1)", text))
    assert all(f.file and f.line for f in broken(folder, pattern, by, file))


@pytest.mark.parametrize("tag", policy.REQUIRED_TAGS)
def test_each_tag_is_missed(folder: Path, tag: str) -> None:
    findings = broken(folder, rf'^ *"{tag}".*\n', "", BUILD)
    assert [finding.rule for finding in findings] == ["tags-complete"] * len(policy.TAGGED) * 2
    assert tag in findings[0].message


@pytest.mark.parametrize("attribute", policy.TAGGED)
def test_each_kind_of_resource_has_to_be_tagged(folder: Path, attribute: str) -> None:
    findings = broken(folder, rf"^  {attribute} *= merge.*\n", "")
    assert [(f.rule, f.message.split()[0]) for f in findings] == [("tags-complete", attribute)]


@pytest.mark.parametrize("version", ["~> 1.8", ">= 1.2.2", "< 1.9.0", "1.8", ""])
def test_a_plugin_version_that_may_change_is_found(folder: Path, version: str) -> None:
    findings = broken(folder, r'version = ".*"', f'version = "{version}"', "plugins.pkr.hcl")
    assert [(f.rule, f.line) for f in findings] == [("plugin-pinned", 6)]


def test_a_plugin_nobody_requires_is_found(folder: Path) -> None:
    (folder / "plugins.pkr.hcl").unlink()
    assert [f.rule for f in policy.check_policy(folder)] == ["plugin-pinned"]


def test_a_finding_names_the_file_and_line_of_the_mistake(folder: Path) -> None:
    findings = broken(folder, r'EFA_SKIP_PLUGIN( *)= ""', r'EFA_SKIP_PLUGIN\1= "latest"', OWN)
    (line,) = {finding.line for finding in findings}
    assert line
    assert "EFA_SKIP_PLUGIN" in (folder / OWN).read_text().splitlines()[line - 1]
    assert [str(f).split(": ")[0] for f in findings] == [f"packer/{folder.name}/{OWN}:{line}"]


def test_a_finding_in_what_all_rows_share_names_the_shared_file(folder: Path) -> None:
    (finding,) = broken(folder, r"encrypted( *)= true", r"encrypted\1= false")
    lines = (folder / SOURCE).read_text().splitlines()
    assert finding.line
    assert lines[finding.line - 1].split() == ["encrypted", "=", "false"]
    assert finding.file == f"packer/shared/{SOURCE}"
    assert finding.rows == (folder.name,)


def test_a_finding_in_a_file_that_both_packers_read_is_told_once(folder: Path) -> None:
    findings = broken(folder, r"/runtime-variants", "/runtime-variance", BUILD)
    assert [f.rule for f in findings] == ["provisioner-exists"]


def test_a_provisioner_of_a_component_that_the_row_lacks_need_not_be_there(folder: Path) -> None:
    assert not (folder / "../../provisioners/gdrcopy.sh").exists()
    assert "provisioners/gdrcopy.sh" in (folder / BUILD).read_text()
    assert policy.check_policy(folder) == []


def test_text_at_the_left_margin_of_a_heredoc_is_read_as_text(folder: Path) -> None:
    heredoc = 'variable "note" {\n  default = <<-EOT\nbuild on the latest\n  EOT\n}\n\nbuild {'
    (finding,) = broken(folder, r"^build \{", heredoc, BUILD)
    assert finding.rule == "no-latest"


def test_the_file_for_packer_1_6_is_held_to_the_rules_it_can_keep(folder: Path) -> None:
    findings = broken(
        folder, r"encrypted( *)= true", r"encrypted\1= false", "packer-1.6/source.pkr.hcl"
    )
    assert [(f.rule, f.file) for f in findings] == [
        ("root-encrypted", "packer/shared/packer-1.6/source.pkr.hcl")
    ]


def test_a_link_that_leads_nowhere_is_found(folder: Path) -> None:
    (folder / f"../shared/{VARIABLES}").unlink()
    assert {(f.rule, f.file) for f in policy.check_policy(folder)} == {
        ("hcl-missing", f"packer/shared/{VARIABLES}")
    }


def test_a_file_that_is_not_utf8_is_found(folder: Path) -> None:
    (folder / f"../shared/{VARIABLES}").write_bytes(b"a = 1\nb = \xfc\n")
    (finding,) = [f for f in policy.check_policy(folder) if f.rule == "hcl-missing"]
    assert finding.message == "byte 0xfc in line 2 is not UTF-8"


@pytest.mark.parametrize("link", [SOURCE, "packer-1.6/source.pkr.hcl", BUILD])
def test_a_link_that_is_not_there_is_found(folder: Path, link: str) -> None:
    (folder / link).unlink()
    (finding,) = [f for f in policy.check_policy(folder) if f.rule == "hcl-missing"]
    assert f"no block {Path(link).name.split('.')[0]}" in finding.message


def test_prose_and_comments_may_name_what_values_may_not(folder: Path) -> None:
    assert "0.0.0.0/0" in (folder / VARIABLES).read_text()
    assert policy.check_policy(folder) == []


def test_an_empty_folder_is_not_a_pass(tmp_path: Path) -> None:
    assert {f.rule for f in policy.check_policy(tmp_path)} == {"hcl-missing"}


def test_the_committed_rows_break_no_rule() -> None:
    rows = [ROOT / "packer" / recipe.line for recipe in load.load_recipes()]
    assert [str(f) for row in rows for f in policy.check_policy(row)] == []


def test_every_rule_is_broken_by_a_test_here() -> None:
    source = Path(policy.__file__).read_text()
    rules = set(re.findall(r'inding\(\s*(?:"error",\s*)?"([a-z0-9-]+)"', source))
    covered = {rule for rule, _, _, _ in EDITS.values()}
    assert rules == covered - {"hcl-syntax"} | {"tags-complete", "plugin-pinned", "hcl-missing"}


def test_the_hint_names_the_versions_of_the_plugin_that_the_facts_have(
    folder: Path, marked: Callable[..., None]
) -> None:
    marked("packer", "plugin", floor="1.8.5", ceiling="1.10.0")
    (finding,) = broken(folder, r'version = ".*"', 'version = "1.8"', "plugins.pkr.hcl")
    assert '">= 1.8.5, < 1.10.0"' in finding.hint


def test_the_page_about_aws_names_the_versions_of_the_plugin_that_the_facts_have() -> None:
    plugin = table("packer")["plugin"]
    text = f"({plugin['floor']} up to, not including, {plugin['ceiling']})"
    assert text in (ROOT / "docs/aws.md").read_text()
