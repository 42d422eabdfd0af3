"""The lab's CloudFormation: stacks are made by the lab's own API, in order, and rolled back.

The template of stack.deploy is deployed, looked at and deleted; no guest boots.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from botocore.exceptions import ClientError

from devel import lab_api
from kiln.base.errors import KilnError
from kiln.cloud import aws, stacks, telemetry_stack
from kiln.cloud.target import Target
from kiln.telemetry import Telemetry
from kiln.telemetry.stack import template
from kiln.telemetry.stack.inputs import StackInputs
from kiln.xid import archive
from lab.cloudformation import template as templates
from lab.cloudformation.errors import CloudFormationError
from lab.cloudformation.kinds import identity, machines, watching
from tests.unit import insights

# One lab for all tests of this file, wherever they run.
pytestmark = pytest.mark.xdist_group("lab_cloudformation")
Client = Callable[[str], Any]
INPUTS = StackInputs(Telemetry(), ("p4d.24xlarge",), ("i-0123456789abcdef0",))


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with lab_api.serving(tmp_path_factory.mktemp("cloudformation")) as where:
        yield where


class OneLab:
    """A target: the lab of this test."""

    region = "us-east-1"
    poll_seconds = wait_seconds = 0.05


@pytest.fixture
def client(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Client:
    def of(service: str) -> Any:
        return lab_api.client(endpoint, service)

    for service in ("cloudformation", "cloudwatch", "logs"):
        monkeypatch.setattr(aws, service, lambda target, service=service: of(service))
    return of


def deployed(name: str, data: dict[str, Any], **given: str) -> tuple[dict[str, str], list[str]]:
    """The outputs of a stack, and what was told."""
    messages: list[str] = []
    place: Target = OneLab()  # type: ignore[assignment]
    return stacks.deploy_stack(place, name, json.dumps(data), given, messages.append), messages


def removed(name: str) -> None:
    place: Target = OneLab()  # type: ignore[assignment]
    assert stacks.remove_stack(place, name, lambda line: None)


@pytest.fixture(scope="module")
def whole(endpoint: str) -> Iterator[dict[str, str]]:
    """The outputs of the stack, which is there for some tests."""
    with pytest.MonkeyPatch.context() as patch:
        for service in ("cloudformation", "cloudwatch", "logs"):
            served = lab_api.client(endpoint, service)
            patch.setattr(aws, service, lambda target, served=served: served)
        key = lab_api.client(endpoint, "kms").create_key()["KeyMetadata"]["Arn"]
        bounds = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        boundary = lab_api.client(endpoint, "iam").create_policy(
            PolicyName="bounds",
            PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": bounds}),
        )["Policy"]["Arn"]
        given = {"Email": "a@example.com", "PowerLimit": "300"}
        given |= {"LogsKeyArn": key, "PermissionsBoundary": boundary}
        outputs, messages = deployed("ml", template.template_data(INPUTS), **given)
        assert all("FAILED" not in line for line in messages)
        yield outputs
        removed("ml")


def test_the_lab_makes_every_type_of_the_template_and_refuses_others() -> None:
    used = {resource["Type"] for resource in template.template_data(INPUTS)["Resources"].values()}
    assert used <= {*identity.KINDS, *machines.KINDS, *watching.KINDS}


def test_the_outputs_name_what_is_there(whole: dict[str, str], client: Client) -> None:
    profile = client("iam").get_instance_profile(InstanceProfileName=whole["InstanceProfile"])
    assert profile["InstanceProfile"]["Roles"][0]["RoleName"] == whole["InstanceRole"]
    body = client("cloudwatch").get_dashboard(DashboardName=whole["DashboardName"])
    assert whole["DashboardName"] == "GPU-ml"
    assert "${PROP('Dim.InstanceId')}" in body["DashboardBody"]
    (group,) = client("logs").describe_log_groups(logGroupNamePrefix=whole["EventLogGroup"])[
        "logGroups"
    ]
    assert (group["retentionInDays"], group["logGroupClass"]) == (90, "STANDARD")
    assert ":key/" in group["kmsKeyId"]
    role = client("iam").get_role(RoleName=whole["InstanceRole"])["Role"]
    assert role["PermissionsBoundary"]["PermissionsBoundaryArn"].endswith(":policy/bounds")
    parameter = client("ssm").get_parameter(Name=whole["ConfigParameterCompute"])["Parameter"]
    assert json.loads(parameter["Value"])["metrics"]["namespace"] == "CWAgent"
    topic = client("sns").get_topic_attributes(TopicArn=whole["TopicArn"])["Attributes"]
    assert "key/" in topic["KmsMasterKeyId"]
    assert "cloudwatch.amazonaws.com" in topic["Policy"]


def event(**more: Any) -> str:
    now = datetime.now(timezone.utc)
    line = {"time": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "event": "xid", "severity": "fatal"}
    machine = {"instance_id": "i-1", "image_id": "ami-1", "instance_type": "p4d.24xlarge"}
    return json.dumps({**line, **machine, **more})


def until(done: Callable[[], Any], seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (found := done()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def search(client: Client, title: str, whole: dict[str, str]) -> list[dict[str, Any]]:
    """What a graph of the dashboard shows now: its expressions, evaluated."""
    body = json.loads(
        client("cloudwatch").get_dashboard(DashboardName=whole["DashboardName"])["DashboardBody"]
    )
    (widget,) = [widget for widget in body["widgets"] if widget["properties"].get("title") == title]
    queries = [
        {"Id": metric["id"], "Expression": metric["expression"]}
        for (metric,) in widget["properties"]["metrics"]
    ]
    now = datetime.now(timezone.utc)
    found = client("cloudwatch").get_metric_data(
        MetricDataQueries=queries,
        StartTime=now - timedelta(hours=1),
        EndTime=now + timedelta(minutes=1),
    )
    return list(found["MetricDataResults"])


def test_a_fatal_xid_raises_the_alarm_pages_and_is_on_the_dashboard(
    whole: dict[str, str], client: Client
) -> None:
    queue = client("sqs").create_queue(QueueName="pages")["QueueUrl"]
    arn = client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
    client("sns").subscribe(
        TopicArn=whole["TopicArn"], Protocol="sqs", Endpoint=arn["Attributes"]["QueueArn"]
    )
    group = whole["EventLogGroup"]
    client("logs").create_log_stream(logGroupName=group, logStreamName="i-1")
    now = int(time.time() * 1000)
    client("logs").put_log_events(
        logGroupName=group,
        logStreamName="i-1",
        logEvents=[
            {"timestamp": now, "message": event(xid=79, sxid=None)},
            {"timestamp": now, "message": event(xid=94, sxid=None, count=7)},
            {"timestamp": now, "message": event(event="start", severity=None)},
            {"timestamp": now, "message": event(event="dropped", severity="warning", count=3)},
        ],
    )

    def alarmed() -> set[str]:
        found = client("cloudwatch").describe_alarms(
            StateValue="ALARM", AlarmTypes=["MetricAlarm", "CompositeAlarm"]
        )
        listed = [*found["MetricAlarms"], *found["CompositeAlarms"]]
        return {stream["AlarmName"] for stream in listed if stream["StateValue"] == "ALARM"}

    wanted = {"ml-fatal-xid", "ml-gpu-lost", "ml-events-dropped", "ml-paging", "ml-all-silent"}
    assert until(lambda: wanted <= alarmed()), alarmed()
    assert "ml-silent-i-0123456789abcdef0" in until(alarmed), "it never reported"
    assert not {"ml-row-remap-failure", "ml-idle"} & alarmed()

    def paged() -> set[str]:
        got = client("sqs").receive_message(QueueUrl=queue, MaxNumberOfMessages=10)
        for notice in got.get("Messages", []):
            heard.add(json.loads(json.loads(notice["Body"])["Message"])["AlarmName"])
        return heard

    heard: set[str] = set()
    assert until(lambda: {"ml-fatal-xid", "ml-gpu-lost"} <= paged()), heard
    # The silent instance paged before the queue was there.
    history = client("cloudwatch").describe_alarm_history(
        AlarmName="ml-paging", HistoryItemType="Action"
    )["AlarmHistoryItems"]
    assert "Successfully executed action" in history[0]["HistorySummary"]
    by_xid = {
        series["Label"]: sum(series["Values"]) for series in search(client, "Events by Xid", whole)
    }
    assert {label.split()[-1]: total for label, total in by_xid.items()} != {}
    assert sorted(by_xid.values()) == [1, 7], "a folded storm counts as many as it stands for"
    counts = {
        word: sum(series["Values"])
        for series in search(client, "Events by severity", whole)
        for word in series["Label"].split()
    }
    assert (counts["fatal"], counts["warning"]) == (8, 3)


FELL = (
    "NVRM: Xid (PCI:0000:00:1e): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
LOST = "NVRM: GPU 0000:00:1c.0: GPU has fallen off the bus."
FABRIC = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"


def logged(kernel: str, boot: int, **more: Any) -> str:
    """An event as the monitor of a machine writes it about a line of the kernel."""
    (row,) = archive.events([kernel])
    row.pop("message")
    return json.dumps(row | {"boot_id": f"{boot:032x}", "uuid": None} | more)


def test_the_dashboards_tables_show_the_events_and_the_instances_to_replace(
    whole: dict[str, str], client: Client
) -> None:
    machines = {
        "i-falls": [logged(FELL, boot, uuid="GPU-7", gpu=0) for boot in (1, 1, 2, 3)],
        "i-lost": [logged(LOST, boot) for boot in (4, 5, 6)],
        "i-both": [
            logged(FELL.replace("1e", "1c"), 13),
            *(logged(LOST, boot) for boot in (14, 15)),
        ],
        "i-twice": [logged(FELL, boot) for boot in (7, 8)],
        "i-drill": [logged(FELL, boot, injected=True) for boot in (9, 10, 11)],
        "i-fabric": [logged(FABRIC, 12), json.dumps({"event": "start", "boot_id": "c"})],
    }
    now = int(time.time() * 1000)
    logs, group = client("logs"), whole["EventLogGroup"]
    for name, lines in machines.items():
        logs.create_log_stream(logGroupName=group, logStreamName=name)
        events = [{"timestamp": now + at, "message": line} for at, line in enumerate(lines)]
        logs.put_log_events(logGroupName=group, logStreamName=name, logEvents=events)
    dashboard = client("cloudwatch").get_dashboard(DashboardName=whole["DashboardName"])
    body = json.loads(dashboard["DashboardBody"])

    listed = insights.table(logs, body, "Xid, SXid and health events")
    seen = [row for row in listed if row["instance"] in machines]
    assert [row["instance"] for row in seen].count("i-falls") == 4
    assert [row["@timestamp"] for row in listed] == sorted(
        (row["@timestamp"] for row in listed), reverse=True
    )
    (fabric,) = [row for row in seen if row["instance"] == "i-fabric"]
    assert (fabric["event"], fabric["code"], fabric["severity"]) == ("sxid", "20034", "fatal")
    assert fabric["action"].startswith("reset the fabric")
    lost = [row for row in seen if row["instance"] == "i-lost"]
    assert {(row["event"], row["code"], row["pci"]) for row in lost} == {
        ("gpu-lost", "79", "0000:00:1c.0")
    }
    assert {row["instance"] for row in seen if row.get("drill") == "1"} == {"i-drill"}

    replace = insights.table(logs, body, "Replace the instance")
    newest = {row["instance"]: row.pop("last") for row in replace}
    assert {row["instance"]: (row["device"], row["code"], row["boots"]) for row in replace} == {
        "i-falls": ("GPU-7", "79", "3"),
        "i-lost": ("0000:00:1c", "79", "3"),
        "i-both": ("0000:00:1c", "79", "3"),
    }
    at = datetime.strptime(newest["i-falls"], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=timezone.utc)
    assert at.timestamp() * 1000 == pytest.approx(now + 3)


def test_a_query_that_is_refused_says_where(whole: dict[str, str], client: Client) -> None:
    with pytest.raises(ClientError, match="MalformedQueryException") as refused:
        insights.asked(client("logs"), "fields a by b", [whole["EventLogGroup"]])
    assert "unexpected symbol found by ([9,11])" in str(refused.value)
    place = refused.value.response["queryCompileError"]["location"]  # type: ignore[typeddict-item]
    assert place == {"startCharOffset": 9, "endCharOffset": 11}


def sample(
    metric: str, value: float, gpus: int, instance: str, minutes: int = 15, **more: str
) -> list[dict[str, Any]]:
    """What the agent sends of an instance: a series for each GPU, and one of all."""
    dimensions = {
        "InstanceId": instance,
        "InstanceType": "p4d.24xlarge",
        "ImageId": "ami-1",
        **more,
    }
    now = datetime.now(timezone.utc)
    found = []
    for minute in range(minutes):
        at = now - timedelta(minutes=minute)
        of_gpu = {"MetricName": metric, "Timestamp": at, "Value": value}
        for index in range(gpus):
            named = {**dimensions, "index": str(index), "name": "A100"}
            listed = [{"Name": key, "Value": text} for key, text in named.items()]
            found.append({**of_gpu, "Dimensions": listed})
        found.append({**of_gpu, "Dimensions": [{"Name": "InstanceId", "Value": instance}]})
    return found


def test_a_gpu_that_stopped_reporting_is_found_and_named(
    whole: dict[str, str], client: Client
) -> None:
    for data in (
        sample("nvidia_smi_memory_used", 1.0, 8, "i-8"),
        sample("nvidia_smi_memory_used", 1.0, 7, "i-7", arch="Ampere"),
        sample("nvidia_smi_utilization_gpu", 90.0, 8, "i-8"),
    ):
        client("cloudwatch").put_metric_data(Namespace="CWAgent", MetricData=data)
    place: Target = OneLab()  # type: ignore[assignment]

    def state() -> dict[str, dict[str, Any]]:
        return {
            alarm["name"]: alarm for alarm in telemetry_stack.stack_state(place, "ml")["alarms"]
        }

    silent = "ml-gpu-silent-p4d.24xlarge"
    assert until(lambda: state()[silent]["state"] == "ALARM"), state()[silent]
    assert state()[silent]["about"] == [{"InstanceId": "i-7"}]
    assert state()[silent]["reason"] == "1 out of 2 time series evaluated to ALARM"
    memory = search(client, "Memory in use (MB)", whole)
    assert len(memory) == 15, "each GPU once, with and without the dimension arch, and no sums"
    (idle,) = [
        series for series in search(client, title_of_cost(client, whole), whole) if series["Values"]
    ]
    # Eight GPUs at 90 %: a tenth of the instance's price.
    assert idle["Values"][0] == pytest.approx(21.957642 / 10, rel=1e-3)


def test_heat_power_and_idleness_raise_an_alarm_that_names_the_instance(
    whole: dict[str, str], client: Client
) -> None:
    sent = {
        "ml-hot": sample("nvidia_smi_temperature_gpu", 92.0, 1, "i-hot"),
        "ml-power": sample("nvidia_smi_power_draw", 390.0, 1, "i-power"),
        "ml-idle": sample("nvidia_smi_utilization_gpu", 2.0, 1, "i-idle", minutes=75),
        "ml-hot-dcgm": sample("DCGM_FI_DEV_GPU_TEMP", 95.0, 1, "i-hot"),
        "ml-row-remap-failure-dcgm": sample("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1.0, 1, "i-remap"),
    }
    for name, data in sent.items():
        cool = [{**series, "Value": 50.0} for series in data] if name == "ml-hot" else []
        others = [{"Name": "InstanceId", "Value": "i-cool"}]
        data += [{**value, "Dimensions": others} for value in cool]
        client("cloudwatch").put_metric_data(Namespace="CWAgent", MetricData=data)
    place: Target = OneLab()  # type: ignore[assignment]

    def raised() -> dict[str, list[str]]:
        found = telemetry_stack.stack_state(place, "ml")["alarms"]
        return {
            series["name"]: [each["InstanceId"] for each in series["about"]]
            for series in found
            if series["name"] in sent and series["state"] == "ALARM"
        }

    wanted = {
        name: [{"ml-power": "i-power", "ml-idle": "i-idle"}.get(name, "i-hot")] for name in sent
    } | {"ml-row-remap-failure-dcgm": ["i-remap"]}
    assert until(lambda: raised() == wanted), raised()


def test_efas_graphs_show_each_device_whatever_its_name(
    whole: dict[str, str], client: Client
) -> None:
    now = datetime.now(timezone.utc)
    sums = [{"Name": "InstanceId", "Value": "i-efa"}]
    devices = [
        [*sums, {"Name": "device", "Value": name}, {"Name": "port", "Value": "1"}]
        for name in ("rdmap16s27", "efa_0")
    ]
    data = [
        {"MetricName": metric, "Timestamp": now, "Value": 5.0, "Dimensions": dimensions}
        for metric in ("efa_rx_bytes", "efa_retrans_pkts")
        for dimensions in (*devices, sums)
    ]
    client("cloudwatch").put_metric_data(Namespace="CWAgent", MetricData=data)
    for title, metric in (
        ("EFA bytes a minute", "efa_rx_bytes"),
        ("EFA drops, retransmissions, errors", "efa_retrans_pkts"),
    ):
        words = [set(series["Label"].split()) for series in search(client, title, whole)]
        assert len(words) == len(devices), "each device once, and no sums"
        for device in ("rdmap16s27", "efa_0"):
            assert any({"i-efa", device, metric} <= each for each in words), device


def title_of_cost(client: Client, whole: dict[str, str]) -> str:
    body = client("cloudwatch").get_dashboard(DashboardName=whole["DashboardName"])
    titles = [
        widget["properties"]["title"] for widget in json.loads(body["DashboardBody"])["widgets"]
    ]
    return str(next(title for title in titles if title.startswith("Idle cost")))


def test_an_update_shows_what_it_changes_and_does_only_that(
    whole: dict[str, str], client: Client
) -> None:
    before = client("cloudformation").list_stack_resources(StackName="ml")
    _, messages = deployed("ml", template.template_data(INPUTS), TemperatureLimit="80")
    modified = [line for line in messages if line.startswith("Modify")]
    assert modified == [
        "Modify  AWS::CloudWatch::Alarm  Hot  (Threshold)",
        "Modify  AWS::CloudWatch::Alarm  HotByDcgm  (Threshold)",
    ]
    after = client("cloudformation").list_stack_resources(StackName="ml")
    ids = [
        {state["LogicalResourceId"]: state["PhysicalResourceId"] for state in seen}
        for seen in (before["StackResourceSummaries"], after["StackResourceSummaries"])
    ]
    assert ids[0] == ids[1]
    _, messages = deployed("ml", template.template_data(INPUTS))
    assert messages == ["ml is as the template says: nothing to change"]


def small(**resources: Any) -> dict[str, Any]:
    return {"Resources": resources}


GROUP = {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": "/a"}}


def test_a_stack_that_waits_for_no_guest_is_there_when_its_creation_answers(client: Client) -> None:
    formation = client("cloudformation")
    formation.create_stack(StackName="quick", TemplateBody=json.dumps(small(Group=GROUP)))
    assert formation.describe_stacks(StackName="quick")["Stacks"][0]["StackStatus"] == (
        "CREATE_COMPLETE"
    )
    removed("quick")


def test_a_creation_that_fails_says_why_and_leaves_nothing(client: Client) -> None:
    bad = {
        "Type": "AWS::CloudWatch::Alarm",
        "DependsOn": "Group",
        "Properties": {
            "Metrics": [{"Id": "a", "Expression": "SEARCH('x', 'Sum', 60)", "ReturnData": True}],
            "ComparisonOperator": "GreaterThanThreshold",
            "Threshold": 1,
            "EvaluationPeriods": 1,
        },
    }
    with pytest.raises(KilnError, match="SEARCH is not supported on Metric Alarms") as failed:
        deployed("bad", small(Group=GROUP, Alarm=bad))
    assert failed.value.exit_status == 1
    assert client("logs").describe_log_groups(logGroupNamePrefix="/a")["logGroups"] == []
    with pytest.raises(ClientError, match="does not exist"):
        client("cloudformation").describe_stacks(StackName="bad")


def test_a_creation_is_rolled_back_as_aws_does_it(client: Client) -> None:
    odd = {"Type": "AWS::SNS::Topic", "DependsOn": "Group", "Properties": {"Colour": "red"}}
    formation = client("cloudformation")
    body = json.dumps(small(Group=GROUP, Topic=odd))
    formation.create_stack(StackName="rolled", TemplateBody=body)

    def status() -> str:
        return str(formation.describe_stacks(StackName="rolled")["Stacks"][0]["StackStatus"])

    assert until(lambda: not status().endswith("_IN_PROGRESS"))
    assert status() == "ROLLBACK_COMPLETE"
    assert client("logs").describe_log_groups(logGroupNamePrefix="/a")["logGroups"] == []
    formation.delete_stack(StackName="rolled")


def test_an_update_changes_the_tags_of_the_stack_and_of_what_it_keeps(client: Client) -> None:
    formation, iam, ec2 = client("cloudformation"), client("iam"), client("ec2")
    trust = {"Version": "2012-10-17", "Statement": []}
    alarm = {
        "AlarmName": "tagged",
        **{"Namespace": "n", "MetricName": "m", "Statistic": "Sum", "Period": 60},
        **{"ComparisonOperator": "GreaterThanThreshold", "Threshold": 1, "EvaluationPeriods": 1},
    }
    alarm_arn = "arn:aws:cloudwatch:us-east-1:123456789012:alarm:tagged"
    role = {"RoleName": "tagged", "AssumeRolePolicyDocument": trust}
    body = json.dumps(
        small(
            Role={"Type": "AWS::IAM::Role", "Properties": role},
            Net={"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.9.0.0/16"}},
            Topic={"Type": "AWS::SNS::Topic", "Properties": {"TopicName": "tagged"}},
            Alarm={"Type": "AWS::CloudWatch::Alarm", "Properties": alarm},
            Key={"Type": "AWS::KMS::Key", "Properties": {"KeyPolicy": trust}},
        )
    )
    how = {"StackName": "tags", "TemplateBody": body, "Capabilities": ["CAPABILITY_NAMED_IAM"]}
    old = [{"Key": "cost", "Value": "1"}, {"Key": "team", "Value": "a"}]
    new = [{"Key": "team", "Value": "b"}]

    def tags() -> list[Any]:
        (stack,) = formation.describe_stacks(StackName="tags")["Stacks"]
        ids = {
            item["LogicalResourceId"]: item["PhysicalResourceId"]
            for item in formation.list_stack_resources(StackName="tags")["StackResourceSummaries"]
        }
        assert stack["StackStatus"].endswith("_COMPLETE")
        of_key = client("kms").list_resource_tags(KeyId=ids["Key"])["Tags"]
        seen = [
            stack["Tags"],
            iam.list_role_tags(RoleName=ids["Role"])["Tags"],
            ec2.describe_vpcs(VpcIds=[ids["Net"]])["Vpcs"][0].get("Tags", []),
            client("sns").list_tags_for_resource(ResourceArn=ids["Topic"])["Tags"],
            client("cloudwatch").list_tags_for_resource(ResourceARN=alarm_arn)["Tags"],
            [{"Key": tag["TagKey"], "Value": tag["TagValue"]} for tag in of_key],
        ]
        return [sorted(tags, key=lambda tag: str(tag["Key"])) for tags in seen]

    formation.create_stack(**how, Tags=old)
    assert tags() == [old] * 6
    formation.update_stack(**how, Tags=new)
    assert tags() == [new] * 6
    with pytest.raises(ClientError, match="No updates are to be performed"):
        formation.update_stack(**how)  # without tags it keeps them
    assert tags() == [new] * 6
    removed("tags")


@pytest.mark.parametrize(
    ("rules", "value", "message"),
    [
        ({"Type": "Number", "MinValue": 2}, "1", "'P' must be a number not less than 2"),
        ({"Type": "Number", "MaxValue": "3"}, "3.5", "'P' must be a number not greater than 3"),
        ({"Type": "String", "MinLength": 2}, "a", "'P' must contain at least 2 characters"),
        ({"Type": "String", "MaxLength": "2"}, "abc", "'P' must contain at most 2 characters"),
        ({"Type": "Number", "MinValue": 2, "MaxValue": 3}, "2", ""),
        ({"Type": "String", "MinLength": 2, "MaxLength": 3}, "abc", ""),
        ({"Type": "CommaDelimitedList", "MaxLength": 2}, "a,b,c", ""),
    ],
)
def test_a_parameter_is_within_its_limits(rules: dict[str, Any], value: str, message: str) -> None:
    said = re.escape(message)
    with pytest.raises(CloudFormationError, match=said) if said else contextlib.nullcontext():
        templates.parameter_values({"Parameters": {"P": rules}}, {"P": value}, {})


def test_an_update_that_fails_is_rolled_back(client: Client) -> None:
    deployed("back", small(Group=GROUP))
    changed = {**GROUP, "Properties": {"LogGroupName": "/a", "RetentionInDays": 7}}
    broken = {
        "Type": "AWS::SNS::TopicPolicy",
        "Properties": {"Topics": ["arn:x"], "PolicyDocument": {}},
    }
    with pytest.raises(KilnError, match="UPDATE_ROLLBACK_COMPLETE"):
        deployed("back", small(Group=changed, Policy={**broken, "DependsOn": "Group"}))
    (group,) = client("logs").describe_log_groups(logGroupNamePrefix="/a")["logGroups"]
    assert "retentionInDays" not in group
    removed("back")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (small(A={"Type": "AWS::Lambda::Function"}), "Lambda::Function is not implemented"),
        (small(A={**GROUP, "CreationPolicy": {}}), "CreationPolicy of A is not implemented"),
        ({**small(A=GROUP), "Transform": "x"}, "the section Transform is not implemented"),
        (
            small(A=GROUP) | {"Parameters": {"P": {"Type": "Number"}}},
            r"Parameters: \[P\] must have values",
        ),
    ],
)  # fmt: skip
def test_what_the_lab_cannot_do_is_refused_before_anything_is_made(
    client: Client, data: dict[str, Any], message: str
) -> None:
    with pytest.raises(KilnError, match=message):
        deployed("refused", data)


def test_an_unknown_property_fails_its_resource(client: Client) -> None:
    odd = {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": "/b", "Colour": "red"}}
    with pytest.raises(KilnError, match="Colour of AWS::Logs::LogGroup is not implemented"):
        deployed("odd", small(Group=odd))


def test_the_network_and_its_instances_come_and_go(client: Client) -> None:
    data = template.template_data(INPUTS)
    names = [
        name
        for name, resource in data["Resources"].items()
        if resource.get("Condition") == "WithInfra" and resource["Type"].startswith("AWS::EC2")
    ]
    kept = {*names, "Role", "InstanceProfile", "BundlePolicy"}
    data["Resources"] = {k: v for k, v in data["Resources"].items() if k in kept}
    data["Outputs"] = {k: v for k, v in data["Outputs"].items() if "Instance" in k}
    public = client("ssm").get_parameters_by_path(
        Path="/aws/service/ami-amazon-linux-latest", Recursive=True
    )["Parameters"][0]["Name"]
    outputs, _ = deployed("trial", data, DeployInfra="true", Image=public)
    ids = [outputs["FirstInstance"], outputs["SecondInstance"]]
    found = client("ec2").describe_instances(InstanceIds=ids)["Reservations"]
    (group,) = {
        group["GroupId"] for each in found for group in each["Instances"][0]["SecurityGroups"]
    }
    (shown,) = client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"]
    assert shown["IpPermissions"] == []
    profiles = {each["Instances"][0]["IamInstanceProfile"]["Arn"] for each in found}
    assert all(arn.endswith(outputs["InstanceProfile"]) for arn in profiles)
    removed("trial")
    vpcs = client("ec2").describe_vpcs(Filters=[{"Name": "tag:Name", "Values": ["trial"]}])
    assert vpcs["Vpcs"] == []


def test_short_forms_and_expressions_have_the_values_of_cloudformation(client: Client) -> None:
    text = """
Parameters: {Size: {Type: Number, Default: 2}, Names: {Type: CommaDelimitedList, Default: "a, b"}}
Mappings: {Days: {"2": {Of: 7}}}
Conditions:
  Large: !Not [!Equals [!Ref Size, 1]]
  Never: !And [!Condition Large, !Equals [a, b]]
Resources:
  Group:
    Type: AWS::Logs::LogGroup
    Properties:
      LogGroupName: !Join ["/", ["", !Select [1, !Ref Names], !Sub "${AWS::StackName}-${!x}"]]
      RetentionInDays: !If [Large, !FindInMap [Days, !Ref Size, Of], !Ref AWS::NoValue]
  Not: {Type: AWS::Logs::LogGroup, Condition: Never}
Outputs:
  Arn: {Value: !GetAtt Group.Arn}
  Gone: {Condition: Never, Value: !Ref Not}
"""
    place: Target = OneLab()  # type: ignore[assignment]
    outputs = stacks.deploy_stack(place, "short", text, {}, lambda line: None)
    (group,) = client("logs").describe_log_groups(logGroupNamePrefix="/b/")["logGroups"]
    assert (group["logGroupName"], group["retentionInDays"]) == ("/b/short-${x}", 7)
    assert list(outputs) == ["Arn"]
    removed("short")
