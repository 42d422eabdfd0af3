"""A row that passes because of a fact which nobody confirmed: `check` warns and refuses nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from kiln import facts
from kiln.base.findings import Place
from kiln.base.recipe import Acceptance
from kiln.compat.engine import check_combination, check_matrix, check_recipe
from kiln.matrix.load import load_recipes

RULE = "FACT-UNCONFIRMED"
RECIPES = load_recipes()


def a_row(**wanted):
    """The first row of the matrix with these values."""
    return next(
        recipe
        for recipe in RECIPES
        if all(getattr(recipe, name) == value for name, value in wanted.items())
    )


# A row that names its instance types, and one with one library more.
MANY = a_row(line="al2023-lts-both-base-x86_64")
PLAIN = a_row(line="al2023-lts-base-x86_64")
GDR = a_row(line="al2023-production-base-x86_64")
MIG = replace(MANY, mig_config="all-1g.5gb", target_instance_types=("p4d.24xlarge",))


def warnings(recipe):
    return [item for item in check_recipe(recipe) if item.rule == RULE]


@pytest.mark.parametrize(
    ("row", "table", "keys", "marks", "expected"),
    [
        (MANY, "instances", ["types"], {}, "types[p4d.24xlarge] in"),
        (PLAIN, "instances", ["types"], {}, "instance type g4dn.xlarge"),
        (MANY, "instances", ["gpus", "A100-40GB"], {}, "gpus.A100-40GB in"),
        (MANY, "instances", [], {"nvswitches_confirmed": False}, "the NVSwitches of hopper"),
        (PLAIN, "instances", ["nvswitches", "ampere"], {}, "the NVSwitches of ampere"),
        (PLAIN, "drivers", ["branches", "580"], {}, "branches.580 in"),
        (MANY, "drivers", ["gpus", "B200-180GB"], {}, "first driver branch for the B200-180GB"),
        (MANY, "drivers", ["architectures", "volta"], {}, "architectures.volta in"),
        (PLAIN, "drivers", ["minimum_kernel"], {}, "minimum_kernel[565] in"),
        (PLAIN, "drivers", ["fabricmanager"], {}, "the archives of fabric manager"),
        (PLAIN, "drivers", ["nvlsm", "versions", "2025.10.14"], {}, "NVLSM 2025.10.14"),
        (PLAIN, "cuda", [], {"floors_confirmed": False}, "the lowest driver for CUDA 13"),
        (PLAIN, "cuda", ["releases", "13.0.3"], {}, "the driver of CUDA 13.0.3"),
        (PLAIN, "cuda", ["repos", "amzn2023"], {}, "NVIDIA's repository amzn2023"),
        (PLAIN, "cuda", ["cudnn"], {}, "cudnn[9.21.0] in"),
        (PLAIN, "nccl", ["versions", "2.28.3"], {}, "versions.2.28.3 in"),
        (PLAIN, "nccl", ["plugin"], {}, "plugin[1.13.0] in"),
        (PLAIN, "nccl", [], {"plugin_cuda13_confirmed": False}, "plugin_cuda13 in"),
        (PLAIN, "efa", ["os", "al2023"], {}, "the EFA installers that accept al2023"),
        (PLAIN, "efa", ["releases", "1.51.0"], {}, "what EFA installer 1.51.0 brings"),
        (PLAIN, "efa", [], {"bundles_plugin_from_confirmed": False}, "bundles_plugin_from.x86_64"),
        (PLAIN, "efa", ["gdr"], {}, "gdr[580] in"),
        (PLAIN, "efa", ["minimum_kernel"], {}, "minimum_kernel[1.42.0] in"),
        (PLAIN, "services", ["container_toolkit"], {}, "the releases of container_toolkit"),
        (PLAIN, "services", ["dcgm"], {}, "the releases of dcgm"),
        (GDR, "services", ["gdrcopy", "needs"], {}, "gdrcopy.needs[2.5.1] in"),
        (PLAIN, "services", ["cloudwatch_agent", "builds"], {"confirmed": False}, "the build of"),
        (PLAIN, "cloudwatch", ["gpu_metrics"], {}, "what the CloudWatch agent takes (gpu_metrics)"),
        (PLAIN, "distros", ["distros", "al2023"], {}, "distros.al2023 in"),
        (a_row(flavor="eks"), "distros", ["flavors", "eks"], {}, "the parents of flavour eks"),
        (MIG, "mig", ["gpus"], {}, "gpus[A100-40GB] in"),
        (MIG, "mig", ["mode_change", "ampere"], {}, "how the MIG mode of ampere changes"),
        (MIG, "mig", ["driver_minimums"], {}, "the lowest driver for MIG on the A100-40GB"),
    ],
)  # fmt: skip
def test_a_row_that_passes_by_an_unconfirmed_fact_is_warned_and_told_which(
    marked, row, table, keys, marks, expected
):
    assert not any(expected in item.message for item in warnings(row))
    marked(table, *keys, **(marks or {"confirmed": False}))
    matching = [item for item in warnings(row) if expected in item.message]
    assert [item.level for item in matching] == ["warning"]
    assert f"kiln/facts/knowledge/{table}.yaml" in matching[0].message


def test_one_fact_is_one_finding_with_all_rows_that_rest_on_it(marked):
    marked("efa", "os", "al2023", confirmed=False)
    matching = [item for item in check_matrix(RECIPES) if "os.al2023" in item.message]
    rows = tuple(r.name for r in RECIPES if r.distro.id == "al2023" and r.efa)
    assert [item.rows for item in matching] == [rows]
    assert matching[0].source == facts.table("efa")["sources"]["notes"]


def test_the_finding_stands_where_the_row_requests_what_rests_on_the_fact(marked):
    marked("efa", "os", "al2023", confirmed=False)
    (matching,) = warnings(PLAIN)
    assert matching.place == PLAIN.row.origins["efa"]


def test_a_row_can_accept_what_is_not_confirmed(marked):
    marked("efa", "os", "al2023", confirmed=False)
    accepted = Acceptance(RULE, "tried by hand", date(2099, 1, 1), Place("amis.yaml", 1))
    row = replace(PLAIN, row=replace(PLAIN.row, accepted=(accepted,)))
    assert [item.level for item in warnings(row)] == ["accepted"]


def test_a_combination_that_is_in_no_row_is_warned_too():
    answer = check_combination("al2", "470.256.02", instance_type="p2.xlarge")
    matching = [entry["message"] for entry in answer["findings"] if entry["rule"] == RULE]
    assert any("types[p2.xlarge]" in text for text in matching)
    assert any("gpus.K80" in text for text in matching)


@pytest.mark.parametrize(("driver", "warned"), [("510.108.03", True), ("580.178.04", False)])
def test_an_unconfirmed_first_branch_does_not_matter_where_a_later_one_lists_the_gpu(
    driver, warned
):
    answer = check_combination("al2023", driver, instance_type="g5.xlarge")
    matching = [entry["message"] for entry in answer["findings"] if entry["rule"] == RULE]
    assert any("gpus.A10G" in text for text in matching) is warned


def test_where_a_rule_objects_by_the_unconfirmed_fact_only_the_rule_speaks(marked):
    marked("efa", "os", "al2023", confirmed=False)
    answer = check_combination("al2023", "535.183.01", efa="1.24.1")
    about = [entry for entry in answer["findings"] if "EFA" in entry["rule"] + entry["message"]]
    assert [entry["rule"] for entry in about if "al2023" in entry["message"]] == []
    assert "EFA-OS" in {entry["rule"] for entry in about}


def test_an_entry_that_the_facts_lack_is_left_to_its_rule():
    answer = check_combination("al2023", "580.178.04", efa="9.99.0")
    rules = {entry["rule"] for entry in answer["findings"]}
    assert "EFA-UNKNOWN" in rules
    assert RULE not in rules
