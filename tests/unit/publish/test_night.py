"""What a night has to do, decided from the tags of AMIs and from channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kiln.base.recipe import Recipe
from kiln.base.tags import INPUT_DIGEST
from kiln.cloud import parents
from kiln.cloud.target import Target
from kiln.matrix.publishing import Publish
from kiln.pipeline import plan as planning
from kiln.publish.nightly import Night, plan_night
from tests.unit.publish.channel import AWS, OTHER, RECIPE, Bake, published


def planned(recipe: Recipe = RECIPE, **settings: int) -> Night:
    return plan_night([recipe], {recipe.name: Publish.model_validate(settings)}, AWS)


@pytest.fixture
def baked(client: Callable[..., Any], bake: Bake) -> Callable[[], str]:
    """Makes a verified AMI of the row that was built from today's inputs."""
    digest = planning.plan_build(RECIPE, AWS, planning.Options()).input_digest

    def made() -> str:
        ami_id = bake(1)
        tags = [{"Key": INPUT_DIGEST, "Value": digest}]
        client("ec2").create_tags(Resources=[ami_id], Tags=tags)
        return ami_id

    return made


def test_a_row_is_due_without_an_ami_then_to_be_published_then_skipped(
    baked: Callable[[], str],
) -> None:
    assert [one.why for one in planned().due] == ["it has no verified AMI"]
    ami_id = baked()
    (due,) = planned().due
    assert (due.ami_id, due.why) == (ami_id, f"{ami_id}, built before, was not in nightly yet")
    published()
    (skipped,) = planned().skipped
    assert (skipped.ami_id, skipped.channel) == (ami_id, "nightly")
    assert "has the same inputs" in skipped.why


def test_a_row_is_due_when_its_inputs_have_changed(bake: Bake) -> None:
    ami_id = bake(1)
    assert [one.why for one in planned().due] == [f"its inputs have changed since {ami_id}"]


def test_a_row_with_a_region_of_its_own_is_planned_where_the_night_looks_for_amis(
    baked: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    baked()
    published()
    asked = []
    real = parents.resolve

    def resolve(recipe: Recipe, target: Target) -> Any:
        asked.append(target.region)
        return real(recipe, target)

    monkeypatch.setattr(parents, "resolve", resolve)
    elsewhere = replace(RECIPE.row.account, region=OTHER)
    recipe = replace(RECIPE, row=replace(RECIPE.row, account=elsewhere))
    assert [one.row for one in planned(recipe).skipped] == [RECIPE.name]
    assert asked == [AWS.region]
