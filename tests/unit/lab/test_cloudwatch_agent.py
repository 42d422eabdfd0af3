"""The CloudWatch agent's stand-in: what its rules make of a configuration, a file and a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.vendors.standins.cloudwatch_agent.agent import config, ctl, gpu, metrics
from lab.vendors.standins.cloudwatch_agent.agent.aws import AwsError
from lab.vendors.standins.cloudwatch_agent.agent.logfile import Tail, seconds_of
from lab.vendors.standins.cloudwatch_agent.agent.plan import Plan
from lab.vendors.standins.cloudwatch_agent.agent.stream import Stream

ABOUT = {"instanceId": "i-1", "imageId": "ami-1", "instanceType": "g4dn.xlarge"}
OWN = {"ImageId": "ami-1", "InstanceId": "i-1", "InstanceType": "g4dn.xlarge"}
EVERY = {name: f"${{aws:{name}}}" for name in ("ImageId", "InstanceId", "InstanceType")}


def plan(metrics_section: dict[str, Any], **gpu_section: Any) -> Plan:
    section = {"measurement": ["memory_used"], **gpu_section}
    whole = {"metrics_collected": {"nvidia_gpu": section}, **metrics_section}
    return Plan({"metrics": whole}, ABOUT)


def sent(made: Plan, fields: dict[str, float], **dimensions: str) -> list[dict[str, Any]]:
    """The datums of one GPU, with their dimensions as a dictionary."""
    reading = [({"index": "0", **dimensions}, fields, 1.0)]
    datums = metrics.datums(made, reading, OWN, "ip-10-0-0-1")
    return [d | {"Dimensions": {x["Name"]: x["Value"] for x in d["Dimensions"]}} for d in datums]


def test_a_series_has_appended_dimensions_and_aggregations() -> None:
    made = plan({"append_dimensions": EVERY, "aggregation_dimensions": [["InstanceId"], []]})
    found = [datum["Dimensions"] for datum in sent(made, {"memory_used": 5}, name="Tesla T4")]
    assert found == [OWN | {"index": "0", "name": "Tesla T4"}, {"InstanceId": "i-1"}, {}]


def test_an_aggregation_over_all_dimensions_is_left_out() -> None:
    made = plan({"aggregation_dimensions": [["index", "host"], ["index", "nobody"], ["index"]]})
    found = [datum["Dimensions"] for datum in sent(made, {"memory_used": 5})]
    assert found == [{"host": "ip-10-0-0-1", "index": "0"}, {"index": "0"}]


def test_a_dropped_original_leaves_its_aggregation() -> None:
    made = plan(
        {"aggregation_dimensions": [[]]},
        measurement=[{"name": "memory_used", "unit": "Megabytes"}, "nvidia_smi_power_draw"],
        drop_original_metrics=["memory_used"],
        metrics_collection_interval=59,
    )
    found = sent(made, {"memory_used": 5, "power_draw": 70.5, "fan_speed": 3})
    assert [(d["MetricName"], d["Unit"], len(d["Dimensions"])) for d in found] == [
        ("nvidia_smi_memory_used", "Megabytes", 0),
        ("nvidia_smi_power_draw", "None", 2),
        ("nvidia_smi_power_draw", "None", 0),
    ]
    assert found[0]["StorageResolution"] == 1


def test_what_the_lab_does_not_collect_is_named() -> None:
    files = {"collect_list": [{"file_path": "/a", "filters": [], "timezone": "UTC"}]}
    made = Plan({"logs": {"logs_collected": {"files": files}},
                 "metrics": {"metrics_collected": {"cpu": {}}}}, ABOUT)  # fmt: skip
    assert made.elsewhere == ["cpu", "filters of /a"]


XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_{schema}.dtd">
<nvidia_smi_log><timestamp>Mon Nov  2 12:00:00 2026</timestamp><gpu id="00000000:00:1E.0">
<product_name>Tesla T4</product_name><product_architecture>Turing</product_architecture>
<fan_speed>N/A</fan_speed><fb_memory_usage><used>3 MiB</used></fb_memory_usage>
<pci><pci_gpu_link_info><link_widths><current_link_width>8x</current_link_width></link_widths>
</pci_gpu_link_info></pci>
<power_readings><power_draw>9.51 W</power_draw></power_readings>
<gpu_power_readings><instant_power_draw>28.10 W</instant_power_draw></gpu_power_readings>
</gpu></nvidia_smi_log>"""


@pytest.mark.parametrize(
    ("schema", "dimensions", "power"),
    [
        ("v11", {"index": "0", "name": "Tesla T4"}, 9.51),
        ("v12", {"index": "0", "name": "Tesla T4", "arch": "Turing"}, 28.1),
        ("v13", {"index": "0", "name": "Tesla T4", "arch": "Turing"}, 28.1),
    ],
)
def test_the_architecture_is_a_dimension_from_schema_12_on(
    schema: str, dimensions: dict[str, str], power: float
) -> None:
    ((found, fields, _),) = gpu.read(XML.format(schema=schema), 5.0)
    assert found == dimensions
    assert fields == {"memory_used": 3, "pcie_link_width_current": 8, "power_draw": power}


@pytest.mark.parametrize(
    ("layout", "line", "seconds"),
    [
        ("%Y-%m-%dT%H:%M:%S.%f", '{"time": "2026-11-20T10:00:00.5Z", "xid": 79}', 1795168800.5),
        ("%d %b %Y %H:%M:%S", "at 02 Nov 2026 01:02:03 kernel:", 1793581323),
        ("%Y-%m-%d %H:%M:%S", "no time here", None),
    ],
)
def test_the_time_of_a_line_is_found_by_its_format(
    layout: str, line: str, seconds: float | None
) -> None:
    assert seconds_of(line, layout, True) == seconds


def tail(folder: Path, **entry: Any) -> Tail:
    listed = [{"file_path": str(folder / "events.log"), "timezone": "UTC", **entry}]
    logs = {"logs_collected": {"files": {"collect_list": listed}}}
    return Tail(Plan({"logs": logs}, ABOUT).sources[0], str(folder / "state"))


def test_a_line_waits_for_the_next_one_because_it_may_go_on(tmp_path: Path) -> None:
    log = tmp_path / "events.log"
    log.write_text("first\n  of two\nsecond\nthi")
    found = tail(tmp_path)
    assert [text for _, text in found.events(0)] == ["first\n  of two"]
    assert found.events(4.9) == []
    assert [text for _, text in found.events(5)] == ["second"]
    log.write_text("first\n  of two\nsecond\nthird\n")
    found.events(6)
    assert [text for _, text in found.events(11)] == ["third"]


def test_reading_goes_on_after_a_restart_and_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "events.log"
    log.write_text("one\ntwo\n")
    first = tail(tmp_path)
    assert [text for _, text in first.events(0)] == ["one"]
    first.keep()
    second = tail(tmp_path)
    second.events(0)
    assert [text for _, text in second.events(5)] == ["two"]
    log.rename(tmp_path / "events.log.1.gz")
    log.write_text("three\n")
    second.events(6)
    assert [text for _, text in second.events(11)] == ["three"]


class Logs:
    """CloudWatch Logs as the agent calls it: with no group at first."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.made: set[str] = set()

    def logs(self, call: str, **body: Any) -> dict[str, Any]:
        self.calls.append((call, body))
        if call == "CreateLogGroup":
            self.made.add("group")
        elif call == "CreateLogStream" and "group" in self.made:
            self.made.add("stream")
        elif call == "DescribeLogGroups":
            return {"logGroups": [{"logGroupName": "/g", "retentionInDays": 7}]}
        elif call in ("PutLogEvents", "CreateLogStream") and "stream" not in self.made:
            raise AwsError("ResourceNotFoundException", call)
        return {}


def test_group_and_stream_are_made_when_they_are_missing_and_retention_is_set(
    tmp_path: Path,
) -> None:
    source = tail(
        tmp_path, log_group_name="/g", log_group_class="infrequent_access", retention_in_days=14
    ).source
    service, messages = Logs(), []
    stream = Stream(source, service, 5, messages.append)  # type: ignore[arg-type]
    stream.add(None, "late", 100.0)
    stream.add(90.0, "early", 101.0)
    assert not stream.send(104.9)
    assert stream.send(105.0)
    names = [name for name, _ in service.calls]
    assert names == [
        *("PutLogEvents", "CreateLogStream", "CreateLogGroup", "CreateLogStream"),
        *("PutLogEvents", "DescribeLogGroups", "PutRetentionPolicy"),
    ]
    assert service.calls[2][1] == {"logGroupName": "/g", "logGroupClass": "INFREQUENT_ACCESS"}
    put = service.calls[4][1]
    assert put["logStreamName"] == "i-1"
    assert [event["message"] for event in put["logEvents"]] == ["early", "late"]
    stream.add(-15 * 86400.0, "too old", 100.0)
    assert "out of accepted time range" in messages[0]


def test_the_translator_judges_new_files_with_those_that_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "amazon-cloudwatch-agent.d"
    folder.mkdir()
    (folder / "old.json").write_text(json.dumps({"metrics": {"namespace": "Mine"}}))
    (folder / "ssm_new.tmp").write_text(json.dumps({"metrics": {"namespace": "Yours"}}))
    toml = tmp_path / "agent.toml"

    def translate(way: str) -> int:
        given = {"input": str(tmp_path / "none.json"), "input-dir": str(folder)}
        flags = {**given, "output": str(toml), "multi-config": way}
        words = [word for name, value in flags.items() for word in (f"--{name}", value)]
        monkeypatch.setattr("sys.argv", ["config-translator", *words])
        return ctl.translator()

    assert translate("append") == 1
    assert "Different values are specified for namespace" in capsys.readouterr().out
    assert not toml.exists()
    assert translate("default") == 0
    assert '"Yours"' in toml.read_text()
    assert translate("remove") == 0
    assert '"Mine"' in toml.read_text()


@pytest.mark.parametrize(
    ("key", "mine", "yours"),
    [("retention_in_days", 90, 7), ("log_group_class", "STANDARD", "INFREQUENT_ACCESS")],
)
def test_two_retentions_or_classes_of_one_log_group_are_refused(
    key: str, mine: object, yours: object
) -> None:
    def entry(**keys: Any) -> dict[str, Any]:
        listed = [{"file_path": "/var/log/a", "log_group_name": "/G", **keys}]
        return {"logs": {"logs_collected": {"files": {"collect_list": listed}}}}

    config.merged([entry(**{key: mine}), entry(file_path="/var/log/b")])
    with pytest.raises(config.ConfigError, match=f"Different {key} values"):
        config.merged([entry(**{key: mine}), entry(file_path="/var/log/b", **{key: yours})])
