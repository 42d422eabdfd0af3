"""What a month of metrics costs: series counted by hand, prices from the table."""

import pytest

from kiln.telemetry.settings import (
    Telemetry,
    cost_text,
    metric_series,
    monthly_cost,
)


@pytest.mark.parametrize(
    ("settings", "counted"),
    [
        # 10 measurements x 8 GPUs, and one aggregate of each over the instance.
        ({}, {"gpu": 80, "aggregates": 10, "total": 90}),
        ({"aggregate_by": (("InstanceId", "index"),)}, {"aggregates": 80}),
        ({"efa": True}, {"efa": 4 * 22}),
        ({"efa": True, "aggregate_by": (("InstanceId", "device"),)}, {"aggregates": 4 * 22}),
        ({"drop_original": True, "host": ("mem",)}, {"gpu": 0, "host": 4, "total": 14}),
    ],
)
def test_series_are_counted_by_hand(settings, counted):
    found = metric_series(Telemetry(**settings), gpus=8, efa_interfaces=4)
    assert found.items() >= counted.items()


def test_cheaper_tier_counts_above_its_limit():
    # 200 x 90 = 18,000 series: 10,000 at $0.30, 8,000 at $0.10.
    fleet = monthly_cost("p4d.24xlarge", Telemetry(), instances=200)
    assert fleet["usd_per_month"] == 3800.00


def test_cost_names_series_dollars_and_price_date():
    text = cost_text(monthly_cost("p4d.24xlarge", Telemetry()))
    assert "90 per instance" in text
    assert "$27.00 a month" in text
    assert "us-east-1, list, as of 2026-08-11" in text
