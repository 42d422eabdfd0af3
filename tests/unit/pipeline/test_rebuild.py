"""`rebuild`: what it takes from a record, and when it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiln.base.errors import KilnError
from kiln.cloud.target import ParentAmi
from kiln.matrix.load import load_recipes
from kiln.packer.render import recipe_digest
from kiln.pipeline import plan
from kiln.pipeline.plan import Options
from kiln.pipeline.record import Record, parse_record
from lab.target import LabTarget
from tests.unit.records import a_record

ROW = load_recipes()[0]


def of_today(**more: Any) -> Record:
    """The record of a build by this checkout, as it is read from its file."""
    record = a_record(**{"recipe": ROW, "recipe_digest": recipe_digest(ROW), **more})
    return parse_record(json.loads(json.dumps(record.to_dict())), "record.json")


def refusal(record: Record) -> KilnError:
    with pytest.raises(KilnError) as caught:
        plan.require_rebuildable(record)
    assert caught.value.exit_status == 2
    return caught.value


def test_recipe_of_a_record_is_the_baked_one() -> None:
    recipe = plan.require_rebuildable(of_today())
    assert recipe.to_dict() == ROW.to_dict()
    assert recipe.digest() == ROW.digest()


def test_other_checkout_names_the_records_commit() -> None:
    error = refusal(of_today(recipe_digest="0" * 64, git_commit="abcdef0123456789"))
    assert "does not bake what run" in error.message
    assert "git worktree add ../kiln-abcdef012 abcdef0123456789" in str(error.hint)
    assert "not committed" not in str(error.hint)


def test_record_without_parent_is_refused() -> None:
    assert "names no parent AMI" in refusal(of_today(source_ami=None)).message


def test_rebuild_has_the_parent_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.daemon.control.status", lambda: None)
    parent = ParentAmi("ami-0fedcba9876543210", "amzn2", "2026-11-01", "the record")
    record = of_today(source_ami=parent)
    recipe = plan.require_rebuildable(record)
    made = plan.plan_build(recipe, LabTarget("a test"), Options(), record)
    assert made.recipe_from == f"the record of run {record.run_id}"
    assert made.source.ami_id == "ami-0fedcba9876543210"
    assert made.input_digest == plan.input_digest(
        recipe_digest(ROW), "ami-0fedcba9876543210", ROW.package_snapshot
    )
    assert made.to_dict()["input_digest"] == made.input_digest
    assert {made.input_digest, made.recipe_digest} <= {*dict(made.rows()).values()}
