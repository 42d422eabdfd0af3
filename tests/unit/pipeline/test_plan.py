"""What a build will do: its region and settings, its scripts, and its list price."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kiln.base import overlay
from kiln.base.errors import KilnError
from kiln.cloud.instance import require_types
from kiln.cloud.target import Target
from kiln.matrix.load import load_recipes
from kiln.pipeline import plan
from lab.target import LabTarget

LAB = LabTarget("--target lab", "us-east-1", endpoint="http://127.0.0.1:4602")
AWS = Target("--target aws", "us-east-1")
ROW = next(row for row in load_recipes() if row.arch == "x86_64" and row.cuda)
KEY = "arn:aws:kms:eu-west-1:123456789012:key/01234567-89ab-cdef-0123-456789abcdef"


def announced(target: Target, **flags: str) -> list[str]:
    lines: list[str] = []
    plan.announce([ROW], plan.Options(aws_flags=flags), target, lines.append)
    return lines


def test_settings_are_announced_without_the_targets_region() -> None:
    lines = announced(LAB, tags="team=ml", region="eu-west-1")
    assert [line for line in lines if line.startswith("aws: ")] == ["aws: tags team=ml (--tags)"]


def test_wrong_region_is_refused_before_aws_is_asked() -> None:
    for target, flags, says in (
        (AWS, {"kms_key_id": KEY}, "the key is in eu-west-1, and the build in us-east-1"),
        (LAB, {"region": "eu-nowhere-1"}, "the lab has no region eu-nowhere-1"),
    ):
        with pytest.raises(KilnError, match=says) as refused:
            announced(target, **flags)
        assert refused.value.exit_status == 2


def test_unknown_instance_type_warns_only_where_ec2_may_have_it() -> None:
    lines: list[str] = []
    require_types(["g4dn.xlarge", "c7i.4xlarge", "g99.xlarge"], AWS, lines.append)
    assert [line.partition(" is ")[0] for line in lines] == ["warning: g99.xlarge"]
    for target, kind in ((LAB, "g99.xlarge"), (AWS, "g4dn.xlrge")):
        with pytest.raises(KilnError) as refused:
            plan.announce([ROW], plan.Options(verify_instance_type=kind), target, lines.append)
        assert (refused.value.exit_status, str(refused.value).count("did you mean")) == (2, 1)
    assert refused.value.hint == "did you mean 'g4dn.xlarge'?"


def test_input_digest_has_recipe_parent_and_snapshot() -> None:
    given = [("r", "a", None), ("r", "a", "1"), ("r", "a", "2"), ("r", "b", None), ("s", "a", None)]
    assert len({plan.input_digest(*inputs) for inputs in given}) == len(given)


def test_script_with_a_syntax_error_ends_a_build_before_a_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = tmp_path / "provisioners"
    shutil.copytree(overlay.PROVISIONERS, copies, ignore=shutil.ignore_patterns("__pycache__"))
    with (copies / "cuda.sh").open("a") as script:
        script.write("if true; then\n    echo a\nfi fi\n")
    monkeypatch.setattr(overlay, "ROOT", tmp_path)
    monkeypatch.setattr(overlay, "PROVISIONERS", copies)
    with pytest.raises(KilnError, match=r"provisioners/cuda\.sh:\d+: error: shell-syntax"):
        plan.require_scripts([ROW])


def test_cost_is_estimated_from_the_instances() -> None:
    # 2700 + 900 seconds, and 100 GiB.
    assert plan.estimate_cost("g4dn.xlarge", "g4dn.xlarge", 100).startswith(
        "about $0.53 for instances, at most $5.00 a month"
    )
    assert plan.estimate_cost("c7i.4xlarge", "g4dn.xlarge", 100).startswith("about $0.67 for")
    assert plan.estimate_cost("p9.48xlarge", "g4dn.xlarge", 100).startswith("unknown price")
