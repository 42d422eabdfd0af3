"""The `telemetry` block: what a user may write, and what they read when it is wrong."""

import pytest
from pydantic import ValidationError

from kiln.telemetry.settings import Telemetry, profile_metrics


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
