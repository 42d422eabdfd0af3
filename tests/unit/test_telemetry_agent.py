"""The agent's files: what lies where, and that the agent would take it."""

import itertools
import json
import re
from datetime import datetime, timezone
from pathlib import Path

import jsonschema
import pytest

from kiln.base import paths
from kiln.telemetry.agent import EVENTS, PLAIN_EVENTS, agent_files, dcgm_counters
from kiln.telemetry.settings import Telemetry, telemetry_facts

ROOT = Path(__file__).parents[2]
DRIVER = "580.178.04"


def read_together(settings: Telemetry, agent_version=None) -> dict[str, dict]:
    """What the agent reads at once, where all hardware is there."""
    every = files(settings, agent_version=agent_version)
    return {path: config for path, config in every.items() if path != PLAIN_EVENTS}


def files(settings: Telemetry, driver=DRIVER, agent_version=None) -> dict[str, dict]:
    texts = agent_files(settings, driver, agent_version)
    return {path: json.loads(text) for path, text in texts.items() if path.endswith(".json")}


def require_schema(configs: dict[str, dict]) -> None:
    """Require that the agent's own JSON schema accepts each file."""
    schema = json.loads((ROOT / "tests/data/cloudwatch-agent-schema.json").read_text())
    for config in configs.values():
        jsonschema.Draft4Validator(schema).validate(config)


def test_events_go_where_the_original_sent_them():
    events = files(Telemetry())[EVENTS]
    assert list(events) == ["logs"], "run_as_user would clash with the wizard's first choice"
    assert events["logs"]["logs_collected"]["files"]["collect_list"] == [
        {
            "file_path": "/var/log/gpuevent.log",
            "log_group_name": "/ec2/accelerated/accel-event-log",
            "log_stream_name": "{instance_id}",
            "timestamp_format": "%Y-%m-%dT%H:%M:%S.%f",
            "timezone": "UTC",
            "retention_in_days": 90,
            "log_group_class": "STANDARD",
        }
    ]


def test_the_agent_finds_the_time_of_each_event_where_it_stands():
    """As its translator makes an expression of timestamp_format; the first match is the time."""
    event = paths.runtime_module("gpu_xid.event")
    (entry,) = files(Telemetry())[EVENTS]["logs"]["logs_collected"]["files"]["collect_list"]
    expression = re.escape(entry["timestamp_format"].replace("%", "\0")).replace("\0", "%")
    codes = telemetry_facts()["logs"]["timestamp_codes"]
    for code in re.findall("%-?.", entry["timestamp_format"]):
        expression = expression.replace(code, codes[code])
    for seconds in (1790000000.0, 1790000000.25, 1796083199.75, 951782400.5):
        hostile = "NVRM: Xid 1999-01-01T00:00:00.5 2000-01-01T00:00:00.5"
        line = event.encode(event.record("xid", seconds, "b" * 32, 7, 7, raw=hostile)).decode()
        result = re.search(expression, line)
        assert result, line
        assert result.start() == len('{"time":"')
        day = datetime.fromtimestamp(seconds, timezone.utc)
        assert result.group() == day.strftime("%Y-%m-%dT%H:%M:%S.%f")
        assert len(result.group(1)) == 6, "microseconds; the agent keeps the first three digits"


def test_gpu_series_carry_the_four_dimensions_their_units_and_an_aggregate_per_instance():
    metrics = files(Telemetry())["kiln.d/gpu.json"]["metrics"]
    assert metrics["append_dimensions"] == {
        name: f"${{aws:{name}}}"
        for name in ("ImageId", "InstanceId", "InstanceType", "AutoScalingGroupName")
    }
    assert metrics["aggregation_dimensions"] == [["InstanceId"]]
    measured = metrics["metrics_collected"]["nvidia_gpu"]["measurement"]
    assert {"name": "utilization_gpu", "unit": "Percent"} in measured
    assert "power_draw" in measured


def test_without_a_driver_or_a_profile_there_are_only_events():
    assert list(files(Telemetry(dcgm=True), driver="")) == [EVENTS, PLAIN_EVENTS]
    assert list(files(Telemetry(profile="none"))) == [EVENTS, PLAIN_EVENTS]


def test_efa_counters_come_from_agents_that_have_them():
    new = files(Telemetry(efa=True), agent_version="1.300068.0b1")["kiln.d/efa.json"]
    assert len(set(new["metrics"]["metrics_collected"]["efa"]["measurement"])) == 22
    assert "kiln.d/efa.json" not in files(Telemetry(efa=True), agent_version="1.300067.1")


def test_the_machine_around_the_gpus_reports_what_is_asked_for():
    asked = Telemetry(host=("disk", "diskio", "ethtool", "mem"))
    new = files(asked)["kiln.d/host.json"]["metrics"]
    assert sorted(new["metrics_collected"]) == ["disk", "diskio", "ethtool", "mem"]
    assert new["namespace"] == files(asked)["kiln.d/gpu.json"]["metrics"]["namespace"]
    old = files(asked, agent_version="1.300058.0")["kiln.d/host.json"]["metrics"]
    local = "instance_store_volume_queue_length"
    assert local in new["metrics_collected"]["diskio"]["measurement"]
    assert local not in old["metrics_collected"]["diskio"]["measurement"]
    for version in (None, "1.300058.0"):
        require_schema(read_together(asked, version))


def test_only_the_aggregates_are_sent_where_the_original_series_are_dropped():
    metrics = files(Telemetry(drop_original=True))["kiln.d/gpu.json"]["metrics"]
    section = metrics["metrics_collected"]["nvidia_gpu"]
    assert section["drop_original_metrics"] == list(Telemetry().metrics)
    require_schema({"gpu.json": {"metrics": metrics}})


def test_slices_of_one_gpu_get_series_of_their_own():
    emf = files(Telemetry(dcgm=True))["kiln.d/dcgm.json"]
    prometheus = emf["logs"]["metrics_collected"]["prometheus"]
    # Without one its translator asks EC2 for tags, and dies where it may not.
    assert prometheus["cluster_name"]
    whole, piece = prometheus["emf_processor"]["metric_declaration"]
    assert whole["dimensions"] == [["InstanceId", "gpu"]]
    assert piece["dimensions"] == [["InstanceId", "gpu", "GPU_I_ID", "GPU_I_PROFILE"]]
    assert {whole["label_matcher"], piece["label_matcher"]} == {
        "^dcgm-[^;]*;$",
        "^dcgm-[^;]*;.+$",
    }


def test_each_instance_writes_its_dcgm_metrics_to_a_stream_of_its_own():
    """The agent names the stream after the job, and one stream of a fleet is throttled."""
    assert (
        "job_name: dcgm-@INSTANCE_ID@\n"
        in agent_files(Telemetry(dcgm=True), DRIVER)["kiln.d/dcgm-scrape.template"]
    )


@pytest.mark.parametrize(
    ("profile", "efa", "dcgm", "agent_version"),
    list(
        itertools.product(
            ("compute", "graphics", "full", "none", ("power_draw",)),
            (False, True),
            (False, True),
            (None, "1.300030.0"),
        )
    ),
)
def test_the_agent_takes_every_combination(profile, efa, dcgm, agent_version):
    settings = Telemetry(profile=profile, efa=efa, dcgm=dcgm, namespace="Team/GPU")
    require_schema(read_together(settings, agent_version))


def test_the_exporters_fields_on_the_image_are_those_of_the_knowledge():
    assert (ROOT / "runtime/etc/kiln/dcgm-counters.csv").read_text() == dcgm_counters()


def test_the_programs_on_the_image_use_the_paths_of_the_knowledge():
    sources = (ROOT / "runtime/opt/kiln/lib/kiln-agent-sources").read_text()
    exporter = (
        ROOT / "runtime/etc/systemd/system/nvidia-dcgm-exporter.service.d/10-kiln.conf"
    ).read_text()
    dcgm = telemetry_facts()["dcgm"]
    assert telemetry_facts()["agent"]["etc"] in sources
    assert Path(EVENTS).name in sources
    assert dcgm["listen"] in sources
    assert f"{dcgm['program']} -f {dcgm['counters_file']} -a {dcgm['listen']}" in exporter
    assert dcgm["target_file"].removeprefix("/run/kiln/") in sources
