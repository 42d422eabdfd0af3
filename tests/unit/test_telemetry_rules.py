"""What the agent would refuse or silently drop is found before an image is built."""

import pytest

from kiln.telemetry import Telemetry, agent_config_problems, merged, validate_agent_config, versions


def gpu(*measurement, **metrics) -> dict:
    return {
        "metrics": {
            "metrics_collected": {"nvidia_gpu": {"measurement": list(measurement)}},
            **metrics,
        }
    }


def logs(*entries: dict) -> dict:
    collected = [{"file_path": f"/var/log/{n}", **entry} for n, entry in enumerate(entries)]
    return {"logs": {"logs_collected": {"files": {"collect_list": collected}}}}


def rules(config: dict) -> list[str]:
    return [problem.rule for problem in validate_agent_config(config)]


@pytest.mark.parametrize(
    "config",
    [
        gpu("utilization_gpu", "nvidia_smi_power_draw", {"name": "fan_speed", "unit": "Percent"}),
        logs({"log_group_name": "a", "retention_in_days": 30}, {"log_group_name": "a"}),
        logs({"log_group_name": "a", "log_group_class": "standard"}),
        gpu("power_draw", append_dimensions={"InstanceId": "${aws:InstanceId}"}),
    ],
)
def test_what_the_agent_takes_passes(config):
    assert validate_agent_config(config) == []


@pytest.mark.parametrize(
    ("config", "rule", "hint"),
    [
        (gpu("utilization_gpus"), "cloudwatch-gpu-metric", "utilization_gpu"),
        (gpu({"name": "xid"}), "cloudwatch-gpu-metric", "known"),
        (gpu({"name": "power_draw", "unit": "Watts"}), "cloudwatch-unit", ""),
        (
            {"metrics": {"metrics_collected": {"nvidia_smi": {"measurement": ["power_draw"]}}}},
            "cloudwatch-gpu-section",
            "nvidia_gpu",
        ),
        (
            gpu("power_draw", append_dimensions={"InstanceId": "i-123"}),
            "cloudwatch-dimension",
            "${aws:InstanceId}",
        ),
        (
            gpu("power_draw", append_dimensions={"Instance": "${aws:InstanceId}"}),
            "cloudwatch-dimension",
            '"InstanceId"',
        ),
        (
            logs(
                {"log_group_name": "a", "retention_in_days": 30},
                {"log_group_name": "A", "retention_in_days": 60},
            ),
            "cloudwatch-one-retention-in-days",
            "30",
        ),
        (
            logs(
                {"log_group_name": "a", "log_group_class": "STANDARD"},
                {"log_group_name": "a", "log_group_class": "infrequent_access"},
            ),
            "cloudwatch-one-log-group-class",
            "STANDARD",
        ),
        (
            logs({"log_group_name": "a", "log_group_class": "CHEAP"}),
            "cloudwatch-log-class",
            "known",
        ),
        (logs({"timestamp_format": "%Y-%j"}), "cloudwatch-timestamp", "%Y"),
        (logs({"retention_in_days": 31}), "cloudwatch-schema", ""),
        (logs({"log_group": "a"}), "cloudwatch-schema", ""),
        ({"metrics": {"namespace": "x"}}, "cloudwatch-schema", ""),
        (gpu("power_draw", interval=60), "cloudwatch-schema", ""),
    ],
)
def test_what_it_would_refuse_is_named_with_the_way_out(config, rule, hint):
    result = validate_agent_config(config)
    assert [problem.rule for problem in result] == [rule]
    assert hint in result[0].hint


def test_files_that_say_different_things_clash():
    _, clashes = merged(
        {
            "a.json": gpu("power_draw", namespace="one"),
            "b.json": {"metrics": {"namespace": "two", "metrics_collected": {}}},
        }
    )
    assert [(clash.rule, clash.message.split(":")[0]) for clash in clashes] == [
        ("cloudwatch-merge", "b.json")
    ]


def test_files_that_say_the_same_are_one():
    config, clashes = merged({"a": gpu("power_draw"), "b": gpu("power_draw"), "c": logs({})})
    assert clashes == []
    assert config == {**gpu("power_draw"), **logs({})}


def test_log_files_of_several_files_are_all_collected():
    config, clashes = merged({"a": logs({}), "b": logs({}, {})})
    assert clashes == []
    assert config == logs({}, {})


def test_merging_leaves_its_input_alone():
    first, second = logs({}), logs({}, {})
    merged({"a": first, "b": second})
    assert (first, second) == (logs({}), logs({}, {}))


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
