"""The stack around GPU machines: its template, what its role may do, its alarms, its dashboard."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator, Draft202012Validator

from kiln.base import yaml_files
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT, runtime_module
from kiln.base.yaml_files import parse_template
from kiln.telemetry import stack
from kiln.telemetry.settings import Telemetry
from kiln.telemetry.stack import StackInputs, parameters_given
from kiln.xid import archive
from tests.unit import cfn_lint

pytestmark = pytest.mark.slow

AGENT_SCHEMA = ROOT / "tests/data/cloudwatch-agent-schema.json"
TYPES = ("g4dn.xlarge", "p4d.24xlarge")
WATCHED = "i-0123456789abcdef0"


def inputs(**settings: Any) -> StackInputs:
    return StackInputs(Telemetry(**settings), TYPES, (WATCHED,))


def template(**settings: Any) -> dict[str, Any]:
    return yaml_files.parse_template(stack.stack_template(inputs(**settings)))


def resources(kind: str, **settings: Any) -> dict[str, dict[str, Any]]:
    """The properties of the template's resources of a type, by their names."""
    found = template(**settings)["Resources"]
    return {
        name: resource["Properties"] for name, resource in found.items() if resource["Type"] == kind
    }


def test_cfn_lint_takes_the_template() -> None:
    """With much and with little in it."""
    little = Telemetry(profile="none", aggregate_by=(), retention_days=-1, efa=True, dcgm=True)
    for text in (stack.TEMPLATE.read_text(), stack.stack_template(StackInputs(little))):
        assert cfn_lint.mistakes(text, "us-east-1") == []
        # https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html
        assert len(text.encode()) < 51_200


@pytest.mark.parametrize("profile", ["compute", "graphics", "full"])
def test_each_profile_is_an_agent_parameter(profile: str) -> None:
    (found,) = [
        resource
        for resource in resources("AWS::SSM::Parameter", dimensions=["InstanceId"]).values()
        if resource["Name"] == f"AmazonCloudWatch-kiln-{profile}"
    ]
    config = json.loads(found["Value"])
    Draft4Validator(json.loads(AGENT_SCHEMA.read_text())).validate(config)
    assert config["metrics"]["append_dimensions"] == {"InstanceId": "${aws:InstanceId}"}
    assert config["metrics"]["metrics_collected"]["nvidia_gpu"]["measurement"]
    assert config["logs"]["logs_collected"]["files"]["collect_list"]
    assert found["Tier"] == "Standard"
    assert len(found["Value"]) <= 4096


@cache
def reference() -> dict[str, Any]:
    """cfn-lint's copy of the Service Authorization Reference."""
    # Without its import, which takes a second.
    package = find_spec("cfnlint")
    assert package and package.origin
    folder = Path(package.origin).parent
    data: dict[str, Any] = json.loads(
        (folder / "data" / "AdditionalSpecs" / "Policies.json").read_text()
    )
    return data


def test_role_limits_each_action_to_its_resources() -> None:
    (role,) = resources("AWS::IAM::Role").values()
    policy = role["Policies"][0]["PolicyDocument"]
    for statement in policy["Statement"]:
        actions = statement["Action"]
        for action in [actions] if isinstance(actions, str) else actions:
            service, name = action.split(":")
            known = reference()[service]["Actions"][name.lower()] or {}
            # PutMetricData has a `dataset` resource, which the agent does not set; the policy
            # limits the namespace instead.
            limited = bool(known.get("Resources")) and action != "cloudwatch:PutMetricData"
            assert limited == (statement["Resource"] != "*"), action
    (metrics,) = [statement for statement in policy["Statement"] if statement["Sid"] == "Metrics"]
    assert metrics["Condition"] == {"StringEquals": {"cloudwatch:namespace": "CWAgent"}}


def test_silent_gpu_of_many_raises_an_alarm() -> None:
    found = resources("AWS::CloudWatch::Alarm")
    p4d = found["GpuSilentP4d24xlarge"]
    # Eight GPUs, five samples each in five minutes: 40, and 35 of seven GPUs.
    assert 35 < p4d["Threshold"] < 40
    assert (
        "WHERE InstanceType = 'p4d.24xlarge' GROUP BY InstanceId"
        in (p4d["Metrics"][0]["Expression"])
    )
    assert "GpuSilentG4dnXlarge" not in found, "one GPU that is silent leaves no series to count"


def test_alarms_that_would_see_nothing_are_named() -> None:
    (hot,) = stack.alarms_without_data(Telemetry())
    assert hot.startswith("alarm hot sees nothing of images with these settings")
    assert "temperature_gpu" in hot
    assert stack.alarms_without_data(Telemetry(extra_metrics=("temperature_gpu",))) == []
    assert stack.alarms_without_data(Telemetry(dcgm=True)) == []
    named = [line.split()[1] for line in stack.alarms_without_data(Telemetry(profile="none"))]
    assert named == ["hot", "power", "idle"]


def test_paging_alarm_names_unconditional_alarms() -> None:
    data = template()["Resources"]
    rule = data["PagingAlarm"]["Properties"]["AlarmRule"]["Fn::Sub"]
    named = re.findall(r"\$\{(\w+)\}", rule)
    assert {"FatalXid", "GpuLost", "RowRemapFailure", "GpuSilentP4d24xlarge"} <= set(named)
    assert [name for name in named if "Condition" in data[name]] == []


def body(**settings: Any) -> dict[str, Any]:
    (dashboard,) = resources("AWS::CloudWatch::Dashboard", **settings).values()
    found: dict[str, Any] = json.loads(dashboard["DashboardBody"]["Fn::Sub"])
    return found


SCHEMA = yaml_files.read_plain(ROOT / "tests" / "data" / "cloudwatch" / "dashboard-schema.yaml")


def refusals(found: dict[str, Any]) -> list[str]:
    """What CloudWatch's description of a dashboard's body refuses of one."""
    as_sent = json.loads(json.dumps(found).replace("${!", "${"))
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(as_sent)]


@pytest.mark.parametrize(
    "settings", [{}, {"drop_original": True, "namespace": "My/Own GPUs", "efa": True, "dcgm": True}]
)
def test_the_dashboard_is_of_cloudwatchs_form(settings: dict[str, Any]) -> None:
    assert refusals(body(**settings)) == []


@pytest.mark.parametrize(
    ("given", "message"), [("Email", "expected Name=value"), ("IdleHour=1", "no such parameter")]
)
def test_wrong_parameter_is_refused(given: str, message: str) -> None:
    with pytest.raises(KilnError, match=message) as refused:
        parameters_given([given], template()["Parameters"])
    assert refused.value.exit_status == 2


LINE = "NVRM: Xid (PCI:0000:3b:00): {}, pid=7, name=app, {}"
SXID = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 00 sourcetrack timeout"
LOST = "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."


def matches(pattern: str, event: dict[str, Any]) -> bool:
    """Whether a JSON filter pattern of CloudWatch Logs, as an expression of Python, holds."""
    text = re.sub(r"\$\.(\w+) NOT EXISTS", r"'\1' not in event", pattern.strip("{} "))
    text = re.sub(r"\$\.(\w+) = \*", r"'\1' in event", text)
    text = re.sub(r"\$\.(\w+) = ", r"event.get('\1') == ", text)
    text = re.sub(r"\$\.(\w+) > ", r"(event.get('\1') or 0) > ", text)
    assert "$" not in text, pattern
    return bool(eval(text.replace("&&", "and").replace("||", "or"), {"event": event}))


@cache
def committed() -> dict[str, Any]:
    """Those of the telemetry stack."""
    found: dict[str, Any] = parse_template(stack.TEMPLATE.read_text())["Resources"]
    return found


def counted(event: dict[str, Any]) -> dict[str, int]:
    """How much an event adds to each metric."""
    found: dict[str, int] = {}
    for resource in committed().values():
        if resource["Type"] != "AWS::Logs::MetricFilter":
            continue
        if matches(resource["Properties"]["FilterPattern"], event):
            (how,) = resource["Properties"]["MetricTransformations"]
            value = how["MetricValue"]
            assert how["MetricName"] not in found, "one event, one filter of a metric"
            found[how["MetricName"]] = int(event[value[2:]] if value[0] == "$" else value)
    return found


def monitored(line: str, count: int | None = None) -> dict[str, Any]:
    """The event that gpu-xid writes of a kernel line."""
    (event,) = archive.events([line])
    return {**event, "count": count} if count else dict(event)


FATAL = LINE.format(79, "GPU has fallen off the bus.")
ADDS = {
    "a lost GPU": (FATAL, ["FatalEvents", "LostGpus", "EventsBySeverity", "EventsByXid"]),
    "a GPU lost without an Xid": (LOST, ["FatalEvents", "LostGpus", "EventsBySeverity"]),
    "a failed remapping": (
        LINE.format(64, "row remapping failed"),
        ["FatalEvents", "RowRemapFailures", "EventsBySeverity", "EventsByXid"],
    ),
    "an application's fault": (LINE.format(31, "Ch 1"), ["EventsBySeverity", "EventsByXid"]),
    "a switch": (SXID, ["FatalEvents", "EventsBySeverity", "EventsBySxid"]),
}


@pytest.mark.parametrize("count", [None, 7])
@pytest.mark.parametrize("what", ADDS)
def test_event_is_counted_by_its_metrics(what: str, count: int | None) -> None:
    """A folded storm counts as many events as it stands for."""
    line, metrics = ADDS[what]
    assert counted(monitored(line, count)) == dict.fromkeys(metrics, count or 1)


def test_lost_lines_are_counted() -> None:
    record = runtime_module("gpu_xid.event").record
    dropped = record("dropped", 0, "", 1, 2, severity="error", events=3)
    assert counted(dropped) == {"DroppedEvents": 1, "EventsBySeverity": 1}
    assert counted(record("overrun", 0, "", 1, 2)) == {"DroppedEvents": 1}
    assert counted(record("start", 0, "", 1, 2)) == {}
