"""The policy: each rule holds on what render writes, and fails on an HCL that breaks it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kiln.base.findings import Finding
from kiln.base.paths import ROOT
from kiln.matrix import load
from kiln.packer import policy, render


@pytest.fixture(scope="module")
def rendered() -> tuple[str, dict[str, str]]:
    """The first row's name and files."""
    recipe = load.load_recipes()[0]
    return recipe.name, render.render(recipe)


@pytest.fixture
def folder(tmp_path: Path, rendered: tuple[str, dict[str, str]]) -> Path:
    """The first row where its `../../provisioners` exist."""
    for name in ("provisioners", "runtime", "runtime-variants"):
        (tmp_path / name).symlink_to(ROOT / name)
    row, files = rendered
    for path, text in files.items():
        file = tmp_path / "packer" / row / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "packer" / row


def broken(folder: Path, pattern: str, by: str, file: str = "build.pkr.hcl") -> list[Finding]:
    """The findings after one edit, which must have hit something."""
    path = folder / file
    text, count = re.subn(pattern, by, path.read_text(), flags=re.MULTILINE)
    assert count, f"{pattern} is not in {file}"
    path.write_text(text)
    return policy.check(folder)


def test_what_render_writes_breaks_no_rule(folder: Path) -> None:
    assert policy.check(folder) == []


EDITS = {
    "IMDSv1 on the builder": (
        "imdsv2-required",
        r'http_tokens( *)= "required"',
        r'http_tokens\1= "optional"',
    ),
    "no metadata options at all": ("imdsv2-required", r"^  metadata_options \{[^}]*\}\n", ""),
    "AMI without imds_support": ("imdsv2-required", r"^ *imds_support.*\n", ""),
    "unencrypted root": ("root-encrypted", r"encrypted( *)= true", r"encrypted\1= false"),
    "encryption left out": ("root-encrypted", r"^ *encrypted .*\n", ""),
    "no block devices": ("root-encrypted", r"^  launch_block_device_mappings \{[^}]*\}\n", ""),
    "IPv4 world in": (
        "ingress-closed",
        r"= var.ssh_source_cidrs$",
        r'= ["0.0.0.0/0"]',
    ),
    "IPv6 world in": ("ingress-closed", r"= var.ssh_source_cidrs$", r'= ["::/0"]'),
    "Packer's own default": (
        "ingress-closed",
        r"^ *temporary_security_group_source_cidrs.*\n",
        "",
    ),
    "no addresses as default": (
        "ingress-closed",
        r'^variable "ssh_source_cidrs" \{',
        'variable "ssh_source_cidrs" {\n  default = []',
    ),
    "latest in a URL": (
        "no-latest",
        r"NVIDIA_DRIVER_URL=.*\",",
        r'NVIDIA_DRIVER_URL=https://x.example/latest/d.run",',
    ),
    "a package called latest without a version": (
        "no-latest",
        r"NVIDIA_DRIVER_PACKAGES=[^\"]*\",",
        r'NVIDIA_DRIVER_PACKAGES=kmod-nvidia-latest-dkms",',
    ),
    "access key": (
        "no-identity",
        r"^  shutdown_behavior",
        '  profile = "AKIAABCDEFGHIJKLMNOP"\n  shutdown_behavior',
    ),
    "credentials as attributes": (
        "no-identity",
        r"^  shutdown_behavior",
        "  secret_key = var.region\n  shutdown_behavior",
    ),
    "account id": (
        "no-identity",
        r"kms_key_id( *)= var.kms_key_id",
        r'kms_key_id\1= "arn:aws:kms:us-east-1:123456789012:key/k"',
    ),
    "forced deregistration": (
        "nothing-forced",
        r"force_deregister( *)= false",
        r"force_deregister\1= true",
    ),
    "public image": (
        "not-public",
        r"^  shutdown_behavior",
        '  ami_groups = ["all"]\n  shutdown_behavior',
    ),
    "no manifest": ("manifest-kept", r'post-processor "manifest"', 'post-processor "checksum"'),
    "provisioner that is not there": (
        "provisioner-exists",
        r"provisioners/cuda\.sh",
        "provisioners/cudda.sh",
    ),
    "something after the clean-up": (
        "cleaned-last",
        r"provisioners/hygiene\.sh",
        "provisioners/nccl.sh",
    ),
    "malformed": ("hcl-syntax", r"^  shutdown_behavior .*", "  shutdown_behavior ="),
}


@pytest.mark.parametrize(("rule", "pattern", "by"), EDITS.values(), ids=EDITS.keys())
def test_an_edit_that_breaks_a_rule_is_found(
    folder: Path, rule: str, pattern: str, by: str
) -> None:
    findings = broken(folder, pattern, by)
    assert {finding.rule for finding in findings} >= {rule}
    assert all(f.file and f.file.endswith("/build.pkr.hcl") and f.line for f in findings)


@pytest.mark.parametrize("tag", policy.REQUIRED_TAGS)
def test_each_tag_is_missed(folder: Path, tag: str) -> None:
    findings = broken(folder, rf'^ *"{tag}".*\n', "")
    assert [finding.rule for finding in findings] == ["tags-complete"] * len(policy.TAGGED)
    assert tag in findings[0].message


@pytest.mark.parametrize("attribute", policy.TAGGED)
def test_each_kind_of_resource_has_to_be_tagged(folder: Path, attribute: str) -> None:
    findings = broken(folder, rf"^  {attribute} *= merge.*\n", "")
    assert [(f.rule, f.message.split()[0]) for f in findings] == [("tags-complete", attribute)]


@pytest.mark.parametrize("version", ["~> 1.8", ">= 1.2.2", "1.8", ""])
def test_a_plugin_version_that_may_change_is_found(folder: Path, version: str) -> None:
    findings = broken(folder, r'version = "1.*"', f'version = "{version}"', "plugins.pkr.hcl")
    assert [(f.rule, f.line) for f in findings] == [("plugin-pinned", 6)]


def test_a_plugin_nobody_requires_is_found(folder: Path) -> None:
    (folder / "plugins.pkr.hcl").unlink()
    assert [f.rule for f in policy.check(folder)] == ["plugin-pinned"]


def test_the_line_is_that_of_the_mistake(folder: Path) -> None:
    findings = broken(folder, r"encrypted( *)= true", r"encrypted\1= false")
    lines = (folder / "build.pkr.hcl").read_text().splitlines()
    assert [lines[f.line - 1].split() for f in findings if f.line] == [["encrypted", "=", "false"]]
    assert str(findings[0]).startswith(f"packer/{folder.name}/build.pkr.hcl:{findings[0].line}: ")


def test_text_at_the_left_margin_of_a_heredoc_is_no_block_of_its_own(folder: Path) -> None:
    heredoc = 'variable "note" {\n  default = <<-EOT\nbuild on the latest\n  EOT\n}\n\nbuild {'
    (finding,) = broken(folder, r"^build \{", heredoc)
    assert finding.rule == "no-latest"


def test_the_file_for_packer_1_6_is_held_to_the_rules_it_can_keep(folder: Path) -> None:
    findings = broken(
        folder, r"encrypted( *)= true", r"encrypted\1= false", "packer-1.6/build.pkr.hcl"
    )
    assert [(f.rule, f.file) for f in findings] == [
        ("root-encrypted", f"packer/{folder.name}/packer-1.6/build.pkr.hcl")
    ]


def test_prose_and_comments_may_name_what_values_may_not(folder: Path) -> None:
    text = (folder / "build.pkr.hcl").read_text()
    assert "latest" in text and "0.0.0.0/0" in text
    assert policy.check(folder) == []


def test_an_empty_folder_is_no_pass(tmp_path: Path) -> None:
    assert [f.rule for f in policy.check(tmp_path)] == ["hcl-missing"]


def test_the_committed_rows_break_no_rule() -> None:
    rows = [path for path in (ROOT / "packer").iterdir() if path.is_dir()]
    assert rows
    assert [str(f) for row in rows for f in policy.check(row)] == []


def test_every_rule_is_broken_by_a_test_here() -> None:
    source = Path(policy.__file__).read_text()
    rules = set(re.findall(r'inding\(\s*(?:"error",\s*)?"([a-z0-9-]+)"', source))
    covered = {rule for rule, _, _ in EDITS.values()}
    assert rules == covered - {"hcl-syntax"} | {"tags-complete", "plugin-pinned", "hcl-missing"}
