"""What the agent would refuse or silently drop is found before an image is built."""

import pytest

from kiln.telemetry import Telemetry, agent_config_problems, versions


@pytest.mark.parametrize(
    ("settings", "driver", "agent", "expected"),
    [
        (Telemetry(), "580.126.09", "1.300055.0", ["cloudwatch-power-draw"]),
        (Telemetry(), "580.126.09", "1.300056.0b1123", []),
        (Telemetry(), "580.126.09", None, []),
        (Telemetry(), "550.163.01", "1.300055.0", []),
        (Telemetry(profile="graphics"), "580.126.09", "1.300055.0", []),
        (Telemetry(), "550.163.01", "1.247349.0", ["cloudwatch-nvidia-gpu"]),
        (Telemetry(log_class="INFREQUENT_ACCESS"), "550.163.01", None, ["cloudwatch-log-class"]),
    ],
)
def test_an_agent_too_old_for_the_driver_or_the_settings_is_found(
    settings, driver, agent, expected
):
    assert [problem.rule for problem in versions(settings, driver, agent)] == expected


def test_mig_costs_two_measurements_and_the_way_out_is_dcgm():
    (result,) = versions(Telemetry(), "580.126.09", None, mig=True)
    assert result.rule == "cloudwatch-mig"
    assert "utilization_gpu" in result.message
    assert "dcgm: true" in result.hint
    assert versions(Telemetry(dcgm=True), "580.126.09", None, mig=True) == []
    assert versions(Telemetry(profile=("power_draw",)), "580.126.09", None, mig=True) == []


def test_dcgm_metrics_need_the_exporter_on_the_image():
    (result,) = agent_config_problems(Telemetry(dcgm=True), "580.126.09", None, exporter=False)
    assert (result.level, result.rule) == ("error", "cloudwatch-dcgm")
    assert "dcgm_exporter: <version>" in result.hint
    assert agent_config_problems(Telemetry(dcgm=True), "580.126.09", None, exporter=True) == []
    assert agent_config_problems(Telemetry(), "580.126.09", None, exporter=False) == []


def test_an_exporter_that_nobody_listens_to_is_said():
    (result,) = agent_config_problems(Telemetry(), "580.126.09", None, exporter=True)
    assert (result.level, result.rule) == ("warning", "cloudwatch-dcgm")


def test_an_image_is_asked_for_everything_at_once():
    result = agent_config_problems(
        Telemetry(log_class="INFREQUENT_ACCESS"), "580.1", "1.300055.0", mig=True
    )
    assert [problem.rule for problem in result] == [
        "cloudwatch-power-draw",
        "cloudwatch-log-class",
        "cloudwatch-mig",
    ]
    assert agent_config_problems(Telemetry(efa=True, dcgm=True), "580.126.09", None) == []
