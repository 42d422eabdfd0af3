"""The list price of a build's instances."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.pipeline import plan
from kiln.publish import night
from kiln.publish.night import RowResult

PRICE = 0.526  # of a g4dn.xlarge, an hour
SECONDS = {"packer build": 3600, "boot the AMI": 900, "checks": 900, "clean-up": 500}


@pytest.mark.parametrize(
    ("bake", "verify", "usd"),
    [
        ("g4dn.xlarge", "g4dn.xlarge", PRICE * 1.5),
        ("g4dn.xlarge", None, PRICE),
        ("p9.48xlarge", "g4dn.xlarge", None),
    ],
)
def test_run_costs_the_seconds_of_its_instances(
    bake: str, verify: str | None, usd: float | None
) -> None:
    assert plan.run_usd(SECONDS, bake, verify) == pytest.approx(usd)


def test_estimate_names_instances_and_snapshot() -> None:
    # 2700 + 900 seconds, and 100 GiB.
    assert plan.estimate_cost("g4dn.xlarge", "g4dn.xlarge", 100).startswith(
        "about $0.53 for instances, at most $5.00 a month"
    )
    assert plan.estimate_cost("p9.48xlarge", "g4dn.xlarge", 100).startswith("unknown price")


def test_night_report_sums_its_instances(tmp_path: Path) -> None:
    results = [
        RowResult("a", "built", "changed", usd=0.75),
        RowResult("b", "failed", "its checks", usd=0.5),
        RowResult("c", "skipped", "same inputs"),
    ]
    assert night.night_counts(results) == ("1 built, 1 skipped, 1 failed, instances $1.25")
    night.write_report(results, str(tmp_path))
    assert "| 0.75 |" in (tmp_path / "report.md").read_text()
