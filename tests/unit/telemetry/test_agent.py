"""The agent's files: what lies where, and that the agent would take it."""

import json
import re
from datetime import datetime, timezone

import jsonschema
import pytest

from kiln.base import paths
from kiln.base.paths import ROOT
from kiln.telemetry.agent import EVENTS, PLAIN_EVENTS, agent_files
from kiln.telemetry.settings import Telemetry, telemetry_facts

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


def test_without_driver_or_profile_only_events_are_collected():
    assert list(files(Telemetry(dcgm=True), driver="")) == [EVENTS, PLAIN_EVENTS]
    events = files(Telemetry(profile="none"))
    assert list(events) == [EVENTS, PLAIN_EVENTS]
    logs = events[EVENTS].pop("logs")
    assert events[EVENTS] == {}, "run_as_user would clash with the wizard's first choice"
    (entry,) = logs["logs_collected"]["files"]["collect_list"]
    assert entry["file_path"] == "/var/log/gpuevent.log"
    assert entry["log_group_name"] == "/ec2/accelerated/accel-event-log"
    assert entry["timezone"] == "UTC"


def test_agent_finds_the_time_of_each_event():
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


def test_efa_counters_need_a_newer_agent():
    new = files(Telemetry(efa=True), agent_version="1.300068.0b1")["kiln.d/efa.json"]
    assert len(set(new["metrics"]["metrics_collected"]["efa"]["measurement"])) == 22
    assert "kiln.d/efa.json" not in files(Telemetry(efa=True), agent_version="1.300067.1")


def test_host_metrics_are_those_asked_for():
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


def test_slices_of_one_gpu_get_own_series():
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


@pytest.mark.parametrize("profile", ["compute", "graphics", "full", "none", ("power_draw",)])
@pytest.mark.parametrize("more", [{}, {"efa": True, "dcgm": True}, {"drop_original": True}])
@pytest.mark.parametrize("agent_version", [None, "1.300030.0"])
def test_agents_schema_takes_each_combination(profile, more, agent_version):
    if profile == "none" and "drop_original" in more:
        return
    settings = Telemetry(profile=profile, namespace="Team/GPU", **more)
    require_schema(read_together(settings, agent_version))
