"""The stack around GPU machines: its template, what its role may do, its alarms, its dashboard."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator, Draft202012Validator

from kiln import facts
from kiln.base import yaml_files
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.cloud.iam import iam_facts
from kiln.telemetry import stack
from kiln.telemetry.settings import Telemetry
from kiln.telemetry.stack import StackInputs, parameters_given
from tests.unit import cfn_lint

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


@cfn_lint.together
def test_cloudformation_takes_the_template_in_every_region() -> None:
    """With much and with little in it."""
    little = Telemetry(profile="none", aggregate_by=(), retention_days=-1, efa=True, dcgm=True)
    for text in (stack.TEMPLATE.read_text(), stack.stack_template(StackInputs(little))):
        assert cfn_lint.mistakes(text, *iam_facts()["regions"]) == []
        # https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html
        assert len(text.encode()) < 51_200


@pytest.mark.parametrize("profile", ["compute", "graphics", "full"])
def test_each_profile_is_a_parameter_that_the_agent_takes(profile: str) -> None:
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


def test_a_configuration_above_4_kb_is_an_advanced_parameter() -> None:
    names = (
        "ImageId",
        "InstanceId",
        "InstanceType",
        "AutoScalingGroupName",
        "index",
        "name",
        "arch",
    )
    sets = [list(chosen) for count in (2, 3, 4) for chosen in combinations(names, count)]
    found = resources("AWS::SSM::Parameter", aggregate_by=sets)
    assert {resource["Tier"] for resource in found.values()} == {"Advanced"}


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


def test_the_role_may_do_on_everything_only_what_knows_no_resources() -> None:
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


def test_a_gpu_of_many_that_stops_reporting_is_too_few_samples() -> None:
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


def test_the_paging_alarm_names_only_alarms_that_are_always_there() -> None:
    data = template()["Resources"]
    rule = data["PagingAlarm"]["Properties"]["AlarmRule"]["Fn::Sub"]
    named = re.findall(r"\$\{(\w+)\}", rule)
    assert {"FatalXid", "GpuLost", "RowRemapFailure", "GpuSilentP4d24xlarge"} <= set(named)
    assert [name for name in named if "Condition" in data[name]] == []


def test_log_groups_without_metric_filters_are_refused() -> None:
    with pytest.raises(KilnError, match="INFREQUENT_ACCESS has no metric filters"):
        template(log_class="INFREQUENT_ACCESS")


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


def test_where_only_sums_are_sent_the_graphs_search_for_sums() -> None:
    found = stack.gpu_search(Telemetry(drop_original=True), "power_draw")
    assert found.startswith("{CWAgent,InstanceId} ")
    assert "index" not in found


def test_instances_to_replace_had_an_event_in_three_boots() -> None:
    (table,) = [widget["properties"] for widget in body()["widgets"] if "Replace" in str(widget)]
    assert "| filter boots > 2 |" in table["query"]
    assert "count_distinct(boot_id) as boots" in table["query"]
    assert "not ispresent(injected)" in table["query"]


def test_no_two_widgets_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for widget in body()["widgets"]:
        cells = {
            (x, y)
            for x in range(widget["x"], widget["x"] + widget["width"])
            for y in range(widget["y"], widget["y"] + widget["height"])
        }
        assert not cells & taken, widget["properties"]["title"]
        assert widget["x"] + widget["width"] <= 24
        taken |= cells


def test_idle_cost_is_the_list_price_of_the_gpus_that_do_nothing() -> None:
    (widget,) = [
        widget for widget in body()["widgets"] if "Idle cost" in widget["properties"]["title"]
    ]
    hourly = float(facts.table("ec2-prices")["instances"]["hourly"]["p4d.24xlarge"])
    (line,) = [
        metric[0] for metric in widget["properties"]["metrics"] if "p4d" in metric[0]["label"]
    ]
    assert line["expression"].endswith(f"/ 100 * {hourly / 8:.6f}")


@pytest.mark.parametrize(
    ("given", "message"), [("Email", "expected Name=value"), ("IdleHour=1", "no such parameter")]
)
def test_a_wrong_parameter_is_refused_before_anything_is_asked(given: str, message: str) -> None:
    with pytest.raises(KilnError, match=message) as refused:
        parameters_given([given], template()["Parameters"])
    assert refused.value.exit_status == 2


def test_a_value_may_have_an_equals_sign() -> None:
    given = parameters_given(["LogsKeyArn=a=b", "IdlePercent=7"], template()["Parameters"])
    assert given == {"LogsKeyArn": "a=b", "IdlePercent": "7"}
