"""The CloudWatch agent's stand-in: what its rules make of a configuration, a file and a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.vendors.standins.cloudwatch_agent.agent import gpu, metrics
from lab.vendors.standins.cloudwatch_agent.agent.logfile import Tail
from lab.vendors.standins.cloudwatch_agent.agent.plan import Plan

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
