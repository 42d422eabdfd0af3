"""The matrix: what a mistake in `amis.yaml` is answered with, and what its rows become."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import pytest

from kiln import components, facts
from kiln.base import yaml_files
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.compat import engine
from kiln.matrix import load as matrix
from kiln.matrix import model

MATRIX = """\
defaults:
  instance_type: {x86_64: g4dn.xlarge}
  volume: {size: 100}
distros:
  al2:
    name: Amazon Linux 2
    family: al
    package_manager: yum
    ssh_user: ec2-user
    root_device: /dev/xvda
    cuda_repo: rhel7
    parents:
      base: {ssm_parameter: "/aws/{arch}-gp2"}
      eks: {owner: "602401143452", name: "eks-{kubernetes}-*"}
stacks:
  classic:
    driver: 510.47.03
    kernel_module: proprietary
    cuda: 11.6.2
amis:
- {distro: al2, stack: classic}
"""
KEY = "arn:aws:kms:eu-west-1:123456789012:key/01234567-89ab-cdef-0123-456789abcdef"
ROW = "- {distro: al2, stack: classic}"


def load(tmp_path: Path, *edits: tuple[str, str]) -> list[matrix.Recipe]:
    text = MATRIX
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / "amis.yaml"
    path.write_text(text)
    return matrix.load_recipes(path)


def row(more: str) -> tuple[str, str]:
    return ROW, ROW.replace("}", f", {more}}}")


# What is edited, and the place and words that a person then reads.
MISTAKES = [
    (("stacks:", "stackz:"), "15:1: stackz", "there is no such key here: did you mean 'stacks'?"),
    (("amis:\n" + ROW, ""), "1:1: amis is missing", ""),
    (("  al2:", "  al22:"), "5:3: unknown distribution 'al22'", "did you mean 'al2'?"),
    ((ROW, "- {distro: al22, stack: classic}"), "21:12: AMI Kiln does not", "mean 'al2'?"),
    ((ROW, "- {distro: al2, stack: clasic}"), "21:24: stack 'clasic'", "did you mean 'classic'?"),
    (row("flavors: [bse]"), "21:43: amis.0.flavors.0", "'base', 'eks', 'ecs'"),
    ((ROW, "- {distro: debian12, stack: classic, flavors: [ecs]}"), "21:47: debian12", "has: base"),
    (row("arches: [arm64]"), "21:3: no instance_type for arm64", ""),
    (("{x86_64:", "{x86:"), "2:19: defaults.instance_type.x86", "'x86_64' or 'arm64'"),
    # Behind another mistake.
    (("cuda: 11.6.2", "cudda: 11.6.2\n    driver_source: runfiel"), "20:20: stacks.classic", ""),
    (("510.47.03", "latest"), "17:13: stacks.classic.driver", "version such as 510.47.03"),
    (("cuda: 11.6.2", "cuda: 11"), "19:11: stacks.classic.cuda", "put it in quotes"),
    (row('kernel: "6.12; reboot"'), "21:41: amis.0.kernel", "is not a kernel series or package"),
    (("rhel7", "rhel77"), "11:16: NVIDIA has no repository 'rhel77'", "did you mean 'rhel7'?"),
    (("size: 100", "size: 4"), "3:18: defaults.volume.size", "greater than or equal to 8"),
    (("size: 100", "size: 100, throughput: 1000"), "3:11: defaults.volume", "needs iops: 4000"),
    (("ssh_user: ec2-user", "ssh_user:"), "9:14: distros.al2.ssh_user", "is empty"),
    (('{ssm_parameter: "/aws/{arch}-gp2"}', "{owner: amazon}"), "13:13: distros", "give either"),
    (("{arch}-gp2", "{arhc}-gp2"), "13:29: distros.al2.parents", "did you mean 'arch'?"),
    (("{arch}-gp2", "{arch!z}-gp2"), "13:29: distros", "write a placeholder as {arch}"),
    (row("flavors: [eks]"), "14:42: {kubernetes} needs a value", ""),
    (row("without: [gpu-mg]"), "21:43: component 'gpu-mg'", "did you mean 'gpu-mig'?"),
    (row("without: [hygiene]"), "21:43: component 'hygiene' cannot be left out", ""),
    (
        row('package_snapshot: "1"'),
        "21:51: amis.0.package_snapshot: no archive",
        "have snapshots: al",
    ),
    (
        (ROW, '- {distro: al2023, stack: classic, package_snapshot: "1"}'),
        "21:54: amis.0.package_snapshot: al2023",
        "is not a release of Amazon Linux 2023",
    ),
    (row(f"aws: {{region: us-east-1, kms_key_id: '{KEY}'}}"), "21:70: amis.0", "key is in eu-west"),
    (row("aws: {time_limits: {all: 1h, cudda: 1h}}"), "21:62: amis.0", "did you mean 'cuda'?"),
    ((ROW, f"{ROW}\n{ROW}"), "22:3: al2-510.47.03-cuda11.6-base-x86_64 exists already", "yaml:21)"),
    ((ROW, f"{ROW}\n{ROW[:-1]}, driver: 510.85.02}}"), "22:3: al2-510.85.02", "its own `line`"),
    (("    driver: 510.47.03\n", ""), "20:3: driver is missing in the row and its stack", ""),
]


@pytest.mark.parametrize(("edit", "start", "words"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistake_names_place_and_fix(
    tmp_path: Path, edit: tuple[str, str], start: str, words: str
) -> None:
    with pytest.raises(KilnError) as caught:
        load(tmp_path, edit)
    lines = caught.value.message.splitlines()
    (line,) = [each for each in lines if each.startswith(f"amis.yaml:{start}")][:1]
    assert words in line
    assert caught.value.exit_status == 2
    findings = caught.value.findings
    assert [f"{finding.place}: {finding.message}" for finding in findings] == lines


def test_other_name_has_the_settings_of_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = (
        "{size: 100}",
        "{size: 100}\n  aws: {region: eu-west-1}\n  telemetry: {interval: 30}",
    )
    (recipe,) = load(tmp_path, default, row("aws: {region: us-west-2}"))
    monkeypatch.setattr(matrix, "matrix_file", lambda: tmp_path / "amis.yaml")
    assert matrix.load_account(recipe.name).region == "us-west-2"
    assert matrix.load_account("gone").region == matrix.default_region() == "eu-west-1"
    assert matrix.default_telemetry().interval == 30


def test_line_has_no_version_or_its_own_name(tmp_path: Path) -> None:
    (before,) = load(tmp_path)
    (after,) = load(tmp_path, ("driver: 510.47.03", "driver: 510.85.02"))
    assert before.line == after.line == "al2-classic-base-x86_64"
    assert before.name != after.name
    other = f"{ROW[:-1]}, driver: 510.85.02, line: classic-new}}"
    _, second = load(tmp_path, (ROW, f"{ROW}\n{other}"))
    assert second.line == "al2-classic-new-base-x86_64"


def test_row_is_one_recipe_per_flavor_and_arch(tmp_path: Path) -> None:
    recipes = load(
        tmp_path,
        row('flavors: [base, eks], arches: [x86_64, arm64], kubernetes: "1.33"'),
        ("{x86_64: g4dn.xlarge}", "{x86_64: g4dn.xlarge, arm64: g5g.xlarge}"),
    )
    assert [recipe.name for recipe in recipes] == [
        "al2-510.47.03-cuda11.6-base-x86_64",
        "al2-510.47.03-cuda11.6-base-arm64",
        "al2-510.47.03-cuda11.6-eks-x86_64",
        "al2-510.47.03-cuda11.6-eks-arm64",
    ]
    assert [recipe.instance_type for recipe in recipes[:2]] == ["g4dn.xlarge", "g5g.xlarge"]
    assert recipes[2].source_ami.name == "eks-1.33-*"
    assert [recipe.kubernetes for recipe in recipes] == [None, None, "1.33", "1.33"]


def test_row_overrides_its_stack_and_leaves_out_components(tmp_path: Path) -> None:
    edit = row("driver: 510.85.02, cuda: null, gdrcopy: 2.10, without: [gpu-mig]")
    (recipe,) = load(tmp_path, edit)
    assert (recipe.driver, recipe.cuda, recipe.gdrcopy) == ("510.85.02", None, "2.10")
    assert recipe.name == "al2-510.85.02-base-x86_64"
    order = [name for name in components.names() if name in recipe.components]
    assert list(recipe.components) == order
    assert not {"cuda", "gpu-mig"} & {*order}
    assert order[-2:] == ["cleanup", "hygiene"]


def test_matrix_replaces_settings_of_a_distribution(tmp_path: Path) -> None:
    start, end = MATRIX.index("distros:"), MATRIX.index("stacks:")
    edit = (MATRIX[start:end], "distros: {al2: {ssh_user: ops, parents: {}}}\n")
    (recipe,) = load(tmp_path, edit)
    assert recipe.distro.ssh_user == "ops"
    assert recipe.distro.cuda_repo == facts.distro("al2")["cuda_repo"]
    # The rules judge the repository that the bake uses.
    edits = [("rhel7", "debian13"), ("kernel_module:", "driver_source: repo\n    kernel_module:")]
    (recipe,) = load(tmp_path, *edits)
    found = {finding.rule: finding for finding in engine.check_recipe(recipe)}
    assert "debian13" in found["OS-DRV-REPO"].message


def test_moved_row_keeps_its_digest(tmp_path: Path) -> None:
    (here,) = load(tmp_path)
    (there,) = load(tmp_path, ("amis:", "\n\namis:"))
    assert here.row != there.row
    assert here.digest() == there.digest()


def test_schema_takes_the_matrix_and_no_typo() -> None:
    published = json.loads(model.matrix_json_schema())
    data = copy.deepcopy(yaml_files.load_yaml(ROOT / "amis.yaml").data)
    jsonschema.validate(data, published)
    data["amis"][0]["flavours"] = ["base"]
    with pytest.raises(jsonschema.ValidationError, match="flavours"):
        jsonschema.validate(data, published)
