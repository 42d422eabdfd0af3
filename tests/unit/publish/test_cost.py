"""What runs and published AMIs cost, by list prices that say where they are from."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kiln.base.errors import KilnError
from kiln.base.tags import LINE as LINE_TAG
from kiln.matrix.publishing import Publish
from kiln.pipeline.record import Continued
from kiln.publish import cost, night_report
from kiln.publish.night_results import RowResult
from tests.unit import commands
from tests.unit.publish.channel import AWS, HOME, LINE, OTHER, RECIPE, Bake, published
from tests.unit.records import a_record

PRICE = 0.526  # of a g4dn.xlarge, an hour


def test_a_run_costs_its_instances_seconds() -> None:
    record = a_record(
        instance_type="g4dn.xlarge",
        verify_instance_type="g4dn.xlarge",
        seconds={"packer build": 3600, "boot the AMI": 900, "checks": 900, "clean-up": 500},
    )
    spent = cost.run_cost(record)
    assert spent.as_json()["usd"] == {
        "instances": round(PRICE * 1.5, 4),
        "snapshots": 0,
        "transfer": 0,
        "total": round(PRICE * 1.5, 4),
    }


def test_a_type_without_a_known_price_is_named_and_not_counted() -> None:
    record = a_record(instance_type="p9.48xlarge", verify_instance_type=None)
    spent = cost.run_cost(record)
    assert (spent.total, spent.without_price) == (0, ("p9.48xlarge",))
    assert "not in the sum: p9.48xlarge" in cost.cost_lines(spent, 1)


def test_a_line_costs_its_snapshots_in_each_region_and_the_copies_transfer(bake: Bake) -> None:
    bake(1, tags={"kiln:keep": "cost"})
    published(OTHER)
    only = {LINE_TAG: LINE, "kiln:keep": "cost"}
    two_months, images = cost.images_cost(AWS, [OTHER], 2, only=only)
    at_home, _ = cost.images_cost(AWS, [], 1, only=only)
    assert images == 2
    size = at_home.snapshots / 0.05
    assert size > 0
    assert two_months.snapshots == pytest.approx(size * 2 * 2 * 0.05)
    assert (at_home.transfer, two_months.transfer) == (0, pytest.approx(size * 0.02))


def test_a_night_that_is_too_dear_is_refused_before_it_starts() -> None:
    settings = {RECIPE.name: Publish(regions=(OTHER,))}
    expected = cost.expected_cost(RECIPE, settings[RECIPE.name], HOME)
    # 2700 + 900 seconds of a g4dn.xlarge; 100 GiB stored twice for a month, and copied once.
    assert expected.total == pytest.approx(PRICE + 100 * 2 * 0.05 + 100 * 0.02)
    cost.require_below([RECIPE], settings, HOME, 12.6)
    with pytest.raises(KilnError, match=r"cost \$12.53 .*nothing was started") as refused:
        cost.require_below([RECIPE], settings, HOME, 12.5)
    assert refused.value.exit_status == 2
    unknown = replace(RECIPE, instance_type="p9.48xlarge")
    with pytest.raises(KilnError, match=r"the price of p9.48xlarge is not known"):
        cost.require_below([unknown], settings, HOME, 1000)


def test_a_build_that_failed_early_does_not_make_the_next_one_look_cheap(bake: Bake) -> None:
    whole = {"packer build": 7200.0, "boot the AMI": 100.0, "checks": 1700.0}
    bake(1, instance_type="g4dn.xlarge", seconds=whole)
    settings = Publish()
    expected = cost.expected_cost(RECIPE, settings, HOME)
    assert expected.instances == pytest.approx(PRICE * 2.5)
    for day, fields in (
        (2, {"seconds": {"packer build": 3.0}, "status": "failed"}),
        (3, {"seconds": whole, "continued": Continued("cuda", "ami-0a", same_inputs=True)}),
    ):
        bake(day, instance_type="g4dn.xlarge", **fields)
        assert cost.expected_cost(RECIPE, settings, HOME) == expected


def test_the_report_of_a_night_has_its_sum() -> None:
    results = [
        RowResult("a", "built", "changed", usd=0.75),
        RowResult("b", "failed", "its checks", usd=0.5),
        RowResult("c", "skipped", "same inputs"),
    ]
    assert night_report.night_counts(results) == ("1 built, 1 skipped, 1 failed, instances $1.25")
    assert "| 0.75 |" in night_report.as_markdown(results)


def test_a_run_is_named_by_a_word_and_costs_its_copies_where_they_are(bake: Bake) -> None:
    """Also in a region that only the publish named."""
    bake(1)
    published(OTHER)
    done = commands.invoke("cost", "--run", RECIPE.name, "--json", "--target", "aws")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["of"], answer["images"]) == (RECIPE.name, 2)
