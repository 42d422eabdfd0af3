"""`check`: what a user is told about a GPU stack, in the matrix or not."""

from __future__ import annotations

import json
import re
from datetime import date
from typing import Any

import pytest
import yaml

from kiln.base import versions
from kiln.base.errors import Finding, KilnError, errors
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.cli import matrix as checks
from kiln.compat.engine import check_combination, check_matrix, check_recipe
from kiln.facts import table
from kiln.matrix.load import load_recipes
from tests.unit.rows import row

TODAY = date(2026, 11, 21)
RECIPES = load_recipes(ROOT / "amis.yaml")
NEWEST_580 = max(table("drivers")["branches"]["580"]["versions"], key=versions.key)


def classic(**changes: Any) -> Recipe:
    return row("al2/classic/base/x86_64").changed(**changes)


def lts(**changes: Any) -> Recipe:
    return row("al2023/lts/base/x86_64").changed(**changes)


def found(distro: str, driver: str, rule: str = "", **more: Any) -> list[Finding]:
    """What `check` finds on a combination, by one rule or all."""
    answer = check_combination(distro, driver, **{"today": TODAY, **more})
    every = [Finding(**each) for each in answer["findings"]]
    return [finding for finding in every if rule in ("", finding.rule)]


def served(*arguments: str, **more: Any) -> set[str]:
    return set(check_combination(*arguments, today=TODAY, **more)["instance_types"])


# ------------------------------------------------------------------- rows


def test_matrix_has_no_error() -> None:
    assert errors(check_matrix(RECIPES, today=TODAY)) == []


def test_build_machine_of_the_account_settings_is_judged() -> None:
    account = lts().row.account.changed(instance_types=("g4dn.xlarge", "g5g.xlarge"))
    recipe = lts(row=lts().row.changed(account=account))
    assert [finding.rule for finding in errors(check_recipe(recipe, today=TODAY))] == ["ARCH-BUILD"]


# ------------------------------------------------------------------- combinations


@pytest.mark.parametrize("known", table("cuda")["known_good"], ids=lambda known: known["name"])
def test_what_aws_ships_passes(known: dict[str, Any]) -> None:
    variants = [known["check"]]
    variants += [{**known["check"], "cuda": other} for other in known.get("other_cuda", [])]
    variants += [{**known["check"], "kubernetes": k} for k in known.get("other_kubernetes", [])]
    for variant in variants:
        # CUDA's runfile needs no repository.
        runfile = variant.pop("cuda_source", "") == "runfile"
        answer = check_combination(**variant, today=TODAY)
        refused = {each["rule"] for each in answer["findings"] if each["level"] == "error"}
        assert refused <= ({"OS-CUDA-REPO"} if runfile else set())
        assert answer["instance_types"] or refused


@pytest.mark.parametrize(
    ("distro", "driver", "more", "rule", "hint"),
    [
        ("al2", "510.47.03", {"cuda": "12.2"}, "DRV-CUDA-MAJOR",
         "nearest that works: driver 535.309.01, or CUDA 11.6.2"),
        # 570 is too old for CUDA 13, Ubuntu 20.04 has neither CUDA 13 nor support.
        ("ubuntu2004", "570.211.01", {"cuda": "13.0"}, "DRV-CUDA-MAJOR",
         f"resolves this one: driver {NEWEST_580}, or CUDA 12.8.1"),
        # No driver that may not compile there.
        ("debian12", "580.105.08", {}, "KERN-BUILD", "nearest that works: driver 580.126.09"),
    ],
)  # fmt: skip
def test_hint_names_the_nearest_driver_and_cuda(
    distro: str, driver: str, more: dict[str, str], rule: str, hint: str
) -> None:
    (finding,) = found(distro, driver, rule, **more)
    assert finding.hint.endswith(hint)


def test_mistyped_driver_gets_the_right_one() -> None:
    for driver, meant in (("510.47.3", "510.47.03"), ("580", NEWEST_580)):
        (finding,) = found("al2023", driver, "DRV-UNKNOWN")
        assert finding.message == f"{driver} is not an NVIDIA release; did you mean {meant}?"


# ------------------------------------------------------------------- instance types


def test_types_served_are_those_that_driver_and_module_drive() -> None:
    types = served("al2", "510.47.03")
    assert {"g4dn.xlarge", "g5.xlarge", "p4d.24xlarge", "p3dn.24xlarge"} <= types
    # Too new for it, another processor, not offered, a fraction of a GPU.
    assert not {"p5.48xlarge", "g6.xlarge", "g5g.xlarge", "p3.2xlarge", "g6f.large"} & types
    # An unconfirmed fact counts.
    assert "g6e.xlarge" not in served("ubuntu2204", "530.30.02", instance_types=["g6e.xlarge"])
    assert "g5g.xlarge" in served("al2023", "595.91.07", instance_types=["g5g.xlarge"])
    assert not served("al2", "510.47.03", cuda="12.2")


def test_page_shows_json_and_a_finding_as_printed() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    block = page.split("```json\n", 1)[1].split("```", 1)[0]
    result = check_combination("al2", "510.47.03", cuda="12.2", today=TODAY)
    refused = [finding for finding in result["findings"] if finding["level"] == "error"]
    assert json.loads(json.dumps({**result, "findings": refused})) == yaml.safe_load(block)
    shown = next(block for block in page.split("```") if "accepted: DRV-EOL" in block).strip()
    findings = check_matrix(RECIPES, today=TODAY)
    # Where the stack stands in amis.yaml today does not matter.
    assert shown in [re.sub(r"^amis.yaml:\d+", "amis.yaml:52", str(each)) for each in findings]


# ------------------------------------------------------------------- days


@pytest.mark.parametrize(
    ("rule", "distro", "driver", "more", "levels"),
    [
        ("DRV-EOL", "al2023", "580.178.04", {}, {"2028-06-30": None, "2028-07-01": "warning"}),
        ("OS-EOL", "ubuntu2004", "535.309.01", {}, {"2025-05-31": None, "2025-06-01": "error"}),
        ("OS-EOL", "ubuntu2004", "535.309.01", {"extended_support": True},
         {"2030-04-30": "warning", "2030-05-01": "error"}),
        ("EKS-OS", "al2023", "580.178.04", {"flavor": "eks", "kubernetes": "1.31"},
         {"2025-11-26": None, "2025-11-27": "warning", "2026-11-26": "warning",
          "2026-11-27": "error"}),
    ],
)  # fmt: skip
def test_support_covers_its_last_day(
    rule: str, distro: str, driver: str, more: dict[str, Any], levels: dict[str, str | None]
) -> None:
    for day, level in levels.items():
        clashes = found(distro, driver, rule, today=date.fromisoformat(day), **more)
        assert [clash.level for clash in clashes] == ([level] if level else [])


# ------------------------------------------------------------------- the command line


def test_beginning_of_a_driver_version_is_that_of_the_rows() -> None:
    rows = checks.check_answer({"driver": "580", "distro": "al2023"}, strict=False)
    assert rows["amis"] == sum(r.line.startswith("al2023-lts") for r in load_recipes())
    of_type = {"driver": "580", "distro": "al2023", "instance_type": "p5.48xlarge"}
    answer = checks.check_answer(of_type, strict=False)
    assert answer == checks.check_answer({**of_type, "driver": "580.178.04"}, strict=False)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kubernetes": "1.35"}, "--kubernetes needs --flavor eks"),
        ({"parallelcluster": "3.16.3"}, "--parallelcluster needs --flavor parallelcluster"),
        ({"flavor": "eks", "kubernetes": "1.35.2"}, "1.35.2 is not a Kubernetes version"),
        ({"driver": "999"}, "--driver 999 is not a "),
        ({"driver": "5", "efa": "1.51.0"}, "--driver 5 is not a "),
        ({"efa": "latest"}, "--efa latest is not a "),
    ],
)
def test_version_that_does_not_fit_is_bad_input(more: dict[str, str], message: str) -> None:
    with pytest.raises(KilnError, match=message) as error:
        checks.check_answer({"distro": "al2023", "driver": "580.178.04", **more}, strict=False)
    assert error.value.exit_status == 2
