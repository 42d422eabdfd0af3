"""The `telemetry` block: what a user may write, and what they read when it is wrong."""

import pytest
from pydantic import ValidationError

from kiln.telemetry.settings import Telemetry, profile_metrics, telemetry_facts

BOTH = {
    "utilization_gpu",
    "utilization_memory",
    "memory_total",
    "memory_used",
    "memory_free",
    "pcie_link_gen_current",
    "pcie_link_width_current",
    "clocks_current_memory",
}


def wrong(**block: object) -> str:
    with pytest.raises(ValidationError) as error:
        Telemetry(**block)  # type: ignore[arg-type]
    return str(error.value)


def test_compute_is_exactly_awss_table():
    assert set(Telemetry().metrics) == BOTH | {"power_draw", "clocks_current_sm"}


def test_graphics_is_exactly_awss_table():
    assert set(Telemetry(profile="graphics").metrics) == BOTH | {
        "encoder_stats_session_count",
        "encoder_stats_average_fps",
        "encoder_stats_average_latency",
        "clocks_current_graphics",
        "clocks_current_video",
    }


def test_full_is_all_seventeen():
    assert len(Telemetry(profile="full").metrics) == 17


def test_none_is_events_without_metrics():
    assert Telemetry(profile="none").metrics == ()


def test_a_list_of_measurements_is_a_profile():
    assert Telemetry(profile=["power_draw", "fan_speed"]).metrics == ("power_draw", "fan_speed")


def test_extra_metrics_come_once_and_last():
    assert Telemetry(extra_metrics=("temperature_gpu", "power_draw")).metrics == (
        *profile_metrics("compute"),
        "temperature_gpu",
    )


def test_every_profile_is_made_of_known_measurements():
    for metrics in telemetry_facts()["profiles"].values():
        assert set(metrics) <= set(telemetry_facts()["gpu_metrics"]["names"])


@pytest.mark.parametrize(
    ("block", "answer"),
    [
        ({"profile": "compte"}, "did you mean 'compute'"),
        ({"profile": ["power_drawn"]}, "did you mean 'power_draw'"),
        ({"extra_metrics": ["gpu_temperature"]}, "did you mean 'temperature_gpu'"),
        ({"profile": []}, "profile: none"),
        ({"interval": 0}, "out of range"),
        ({"namespace": "AWS/EC2"}, "does not begin with AWS/"),
        ({"namespace": ""}, "is not a namespace of letters"),
        ({"dimensions": ["InstanceID"]}, "did you mean 'InstanceId'"),
        ({"dimensions": ["InstanceId", "InstanceId"]}, "twice"),
        (
            {"aggregate_by": [["InstanceId", "Cluster"]]},
            "unknown dimension of aggregate_by 'Cluster'",
        ),
        ({"retention_days": 100}, "unknown retention 100"),
        ({"log_class": "INFREQUENT"}, "did you mean 'INFREQUENT_ACCESS'"),
        ({"log_group": "/ec2/my log"}, "letters, digits"),
        ({"log_group": "a$b"}, "letters, digits"),
        ({"log_group": "ünï"}, "letters, digits"),
        ({"log_group": "aws/x"}, "does not begin with aws/"),
        ({"namespace": "aws/x"}, "does not begin with AWS/"),
        ({"namespace": "   "}, "is not a namespace"),
        ({"aggregate_by": [["InstanceId"], ["InstanceId"]]}, "twice"),
        ({"aggregate_by": [["InstanceId", "InstanceId"]]}, "twice"),
        ({"host": ["memory"]}, "unknown section of host 'memory'"),
        ({"host": ["mem", "mem"]}, "twice"),
        ({"flush_interval": 0}, "out of range"),
        ({"drop_original": True, "aggregate_by": []}, "sends nothing of a GPU"),
        ({"dcgm": True, "interval": 600}, "loses the DCGM counters"),
        ({"intervall": 60}, "Extra inputs"),
    ],
)
def test_a_wrong_value_is_answered_with_the_right_one(block, answer):
    assert answer in wrong(**block)


def test_a_long_interval_is_fine_without_dcgm():
    assert Telemetry(interval=600).interval == 600


def test_a_block_cannot_be_changed_after_reading():
    with pytest.raises(ValidationError):
        Telemetry().interval = 5
