"""What a month of metrics costs: series counted by hand, prices from the table."""

import pytest

from kiln.base.errors import KilnError
from kiln.telemetry.settings import (
    Telemetry,
    cost_text,
    metric_series,
    monthly_cost,
    telemetry_facts,
)


def test_eight_gpus_with_the_compute_profile_are_ninety_series():
    # 10 measurements x 8 GPUs, and one aggregate of each over the instance.
    assert metric_series(Telemetry(), gpus=8) == {
        "gpu": 80,
        "efa": 0,
        "aggregates": 10,
        "dcgm": 0,
        "host": 0,
        "total": 90,
    }


def test_a_p4d_costs_its_ninety_series():
    assert monthly_cost("p4d.24xlarge", Telemetry())["usd_per_month"] == 27.00


def test_an_aggregate_by_gpu_is_one_per_gpu():
    settings = Telemetry(aggregate_by=(("InstanceId", "index"),))
    assert metric_series(settings, gpus=8)["aggregates"] == 80


def test_efa_counts_each_interface_and_only_where_there_is_one():
    counters = len(telemetry_facts()["efa"]["counters"])
    assert metric_series(Telemetry(efa=True), gpus=8, efa_interfaces=4)["efa"] == 4 * counters
    assert metric_series(Telemetry(efa=True), gpus=1)["efa"] == 0
    assert metric_series(Telemetry(), gpus=8, efa_interfaces=4)["efa"] == 0


def test_an_aggregate_by_efa_device_is_one_per_device_and_none_of_a_gpu():
    counters = len(telemetry_facts()["efa"]["counters"])
    settings = Telemetry(efa=True, aggregate_by=(("InstanceId", "device"),))
    assert metric_series(settings, gpus=8, efa_interfaces=4)["aggregates"] == 4 * counters


def test_dropped_series_cost_nothing_and_the_machines_own_count():
    counted = metric_series(Telemetry(drop_original=True, host=("mem",)), gpus=8)
    assert counted == {"gpu": 0, "efa": 0, "aggregates": 10, "dcgm": 0, "host": 4, "total": 14}


def test_dcgm_counts_its_fields_of_each_gpu():
    fields = len(telemetry_facts()["dcgm"]["fields"])
    assert metric_series(Telemetry(dcgm=True), gpus=8)["dcgm"] == 8 * fields


def test_the_cheaper_tier_is_only_for_what_is_above_it():
    # 200 x 90 = 18,000 series: 10,000 at $0.30, 8,000 at $0.10.
    fleet = monthly_cost("p4d.24xlarge", Telemetry(), instances=200)
    assert fleet["usd_per_month"] == 3800.00


def test_a_fractional_gpu_is_one_gpu_to_the_agent():
    assert monthly_cost("g6f.large", Telemetry())["series_per_instance"]["gpu"] == 10


def test_what_is_printed_names_series_dollars_and_the_date_of_the_prices():
    text = cost_text(monthly_cost("p4d.24xlarge", Telemetry()))
    assert "90 per instance" in text
    assert "$27.00 a month" in text
    assert "us-east-1, list, as of 2026-08-11" in text


@pytest.mark.parametrize("instances", [0, -1])
def test_a_fleet_that_nobody_has_is_refused(instances):
    with pytest.raises(KilnError, match=f"{instances} instances have no cost") as e:
        monthly_cost("p5.48xlarge", Telemetry(), instances=instances)
    assert e.value.exit_status == 2


def test_an_unknown_instance_type_is_refused():
    with pytest.raises(KilnError, match=r"p4d\.24xlarg is not"):
        monthly_cost("p4d.24xlarg", Telemetry())
