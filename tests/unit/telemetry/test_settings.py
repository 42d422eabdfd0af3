"""The `telemetry` block: what a user may write, and what they read when it is wrong."""

import pytest
from pydantic import ValidationError

from kiln.telemetry.agent import agent_config_problems
from kiln.telemetry.settings import (
    Telemetry,
    cost_text,
    metric_series,
    monthly_cost,
    profile_metrics,
)


@pytest.mark.parametrize(
    ("block", "answer"),
    [
        ({"profile": "compte"}, "did you mean 'compute'"),
        ({"extra_metrics": ["gpu_temperature"]}, "did you mean 'temperature_gpu'"),
        ({"interval": 0}, "out of range"),
        ({"namespace": "AWS/EC2"}, "does not begin with AWS/"),
        ({"dimensions": ["InstanceID"]}, "did you mean 'InstanceId'"),
        ({"aggregate_by": [["InstanceId", "Cluster"]]}, "'Cluster'"),
        ({"aggregate_by": [["InstanceId"], ["InstanceId"]]}, "twice"),
        ({"retention_days": 100}, "unknown retention 100"),
        ({"log_class": "INFREQUENT"}, "did you mean 'INFREQUENT_ACCESS'"),
        ({"log_group": "/ec2/my log"}, "letters, digits"),
        ({"host": ["memory"]}, "'memory'"),
        ({"drop_original": True, "aggregate_by": []}, "sends nothing of a GPU"),
        ({"dcgm": True, "interval": 600}, "loses the DCGM counters"),
        ({"intervall": 60}, "Extra inputs"),
    ],
)
def test_wrong_value_is_refused(block, answer):
    with pytest.raises(ValidationError) as error:
        Telemetry(**block)
    assert answer in str(error.value)


def test_profiles_are_awss_tables():
    compute, graphics = set(profile_metrics("compute")), set(profile_metrics("graphics"))
    assert compute - graphics == {"power_draw", "clocks_current_sm"}
    assert graphics - compute == {
        "encoder_stats_session_count",
        "encoder_stats_average_fps",
        "encoder_stats_average_latency",
        "clocks_current_graphics",
        "clocks_current_video",
    }
    assert (len(compute & graphics), len(profile_metrics("full"))) == (8, 17)
    more = Telemetry(extra_metrics=("temperature_gpu", "power_draw")).metrics
    assert more == (*profile_metrics("compute"), "temperature_gpu")


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


def test_fleet_costs_its_series_by_tier():
    # 200 x 90 = 18,000 series: 10,000 at $0.30, 8,000 at $0.10.
    fleet = monthly_cost("p4d.24xlarge", Telemetry(), instances=200)
    assert fleet["usd_per_month"] == 3800.00
    assert "$3,800.00 a month" in cost_text(fleet)


NEW = "580.126.09"


@pytest.mark.parametrize(
    ("settings", "driver", "agent", "image", "expected"),
    [
        (Telemetry(), NEW, "1.300055.0", {}, ["error power-draw"]),
        (Telemetry(), NEW, "1.300056.0b1123", {}, []),
        (Telemetry(), "550.163.01", "1.300055.0", {}, []),
        (Telemetry(), "550.163.01", "1.247349.0", {}, ["error nvidia-gpu"]),
        (Telemetry(log_class="INFREQUENT_ACCESS"), NEW, None, {}, ["warning log-class"]),
        (
            Telemetry(log_class="INFREQUENT_ACCESS"),
            "550.163.01",
            "1.300031.0",
            {},
            ["error log-class", "warning log-class"],
        ),
        (Telemetry(), NEW, None, {"mig": True}, ["warning mig"]),
        (Telemetry(dcgm=True), NEW, None, {"mig": True}, []),
        (Telemetry(profile=("power_draw",)), NEW, None, {"mig": True}, []),
        (Telemetry(dcgm=True), NEW, None, {"exporter": False}, ["error dcgm"]),
        (Telemetry(dcgm=True), NEW, None, {"exporter": True}, []),
        (Telemetry(), NEW, None, {"exporter": False}, []),
        (Telemetry(), NEW, None, {"exporter": True}, ["warning dcgm"]),
    ],
)
def test_setting_ignored_by_the_agent_is_found(settings, driver, agent, image, expected):
    found = agent_config_problems(settings, driver, agent, **image)
    assert [f"{each.level} {each.rule.removeprefix('cloudwatch-')}" for each in found] == expected
    assert all(each.hint for each in found)
