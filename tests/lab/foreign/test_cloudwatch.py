"""CloudWatch as a client uses it: from a log event to a message in a queue, and what is asked."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from botocore.exceptions import ClientError

GROUP = "/kiln/events"


def until(found: Callable[[], Any], what: str) -> Any:
    for _ in range(1200):
        result = found()
        if result:
            return result
        time.sleep(0.1)
    raise AssertionError(what)


@pytest.fixture(scope="module")
def logs(client: Callable[..., Any]) -> Any:
    made = client("logs")
    made.create_log_group(logGroupName=GROUP)
    made.create_log_stream(logGroupName=GROUP, logStreamName="i-1")
    return made


@pytest.fixture(scope="module")
def watch(client: Callable[..., Any]) -> Any:
    return client("cloudwatch")


@pytest.fixture(scope="module")
def queue(client: Callable[..., Any]) -> tuple[str, str]:
    """A topic, and the queue that is subscribed to it."""
    sns, sqs = client("sns"), client("sqs")
    topic = sns.create_topic(Name="pages")["TopicArn"]
    url = sqs.create_queue(QueueName="pages")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn["QueueArn"])
    return topic, url


def write(logs: Any, *messages: str) -> None:
    now = int(time.time() * 1000)
    events = [{"timestamp": now, "message": message} for message in messages]
    logs.put_log_events(logGroupName=GROUP, logStreamName="i-1", logEvents=events)


def alarm(watch: Any, name: str, **more: Any) -> None:
    watch.put_metric_alarm(
        **{
            "AlarmName": name,
            "Namespace": "Kiln",
            "MetricName": name,
            "Statistic": "Sum",
            "Period": 60,
            "EvaluationPeriods": 1,
            "Threshold": 1,
            "ComparisonOperator": "GreaterThanOrEqualToThreshold",
            **more,
        }
    )


def state(watch: Any, name: str) -> str:
    (found,) = watch.describe_alarms(AlarmNames=[name])["MetricAlarms"]
    return str(found["StateValue"])


def message(client: Any, url: str) -> dict[str, Any]:
    """The next notification in the queue."""
    sqs = client("sqs")

    def received() -> list[Any]:
        return list(sqs.receive_message(QueueUrl=url).get("Messages", []))

    (found,) = until(received, "no message")
    sqs.delete_message(QueueUrl=url, ReceiptHandle=found["ReceiptHandle"])
    notice: dict[str, Any] = json.loads(json.loads(found["Body"])["Message"])
    return notice


def test_a_log_event_raises_an_alarm_whose_message_arrives(logs, watch, queue, client) -> None:
    topic, url = queue
    logs.put_metric_filter(
        logGroupName=GROUP,
        filterName="fatal",
        filterPattern='{ $.severity = "fatal" }',
        metricTransformations=[
            {"metricName": "Fatal", "metricNamespace": "Kiln", "metricValue": "1"}
        ],
    )
    alarm(watch, "Fatal", AlarmActions=[topic], TreatMissingData="notBreaching")
    until(lambda: state(watch, "Fatal") == "OK", "it is not judged")
    write(logs, '{"severity": "warning"}', "NVRM: no JSON")
    write(logs, '{"severity": "fatal", "xid": 79}')
    notice = message(client, url)
    assert (notice["AlarmName"], notice["NewStateValue"], notice["OldStateValue"]) == (
        "Fatal",
        "ALARM",
        "OK",
    )
    assert "[1.0 (" in notice["NewStateReason"]
    assert notice["Trigger"]["Statistic"] == "SUM"
    history = watch.describe_alarm_history(AlarmName="Fatal")["AlarmHistoryItems"]
    kinds = [entry["HistoryItemType"] for entry in history]
    assert kinds == ["Action", "StateUpdate", "StateUpdate", "ConfigurationUpdate"]


def test_set_alarm_state_tells_too_and_is_judged_again(watch, queue, client) -> None:
    alarm(watch, "Quiet", OKActions=[queue[0]], TreatMissingData="notBreaching")
    until(lambda: message(client, queue[1])["AlarmName"] == "Quiet", "it was never OK")
    watch.set_alarm_state(AlarmName="Quiet", StateValue="ALARM", StateReason="a test")
    notice = message(client, queue[1])
    assert (notice["OldStateValue"], notice["NewStateValue"]) == ("ALARM", "OK")


def test_a_composite_alarm_follows_its_rule(watch) -> None:
    for name in ("One", "Two"):
        alarm(watch, name, TreatMissingData="ignore")
        watch.set_alarm_state(AlarmName=name, StateValue="OK", StateReason="a test")
    watch.put_composite_alarm(AlarmName="Page", AlarmRule='ALARM("One") AND NOT ALARM(Two)')

    def composite() -> dict[str, Any]:
        shown = watch.describe_alarms(AlarmTypes=["CompositeAlarm"])["CompositeAlarms"]
        return {alarm["AlarmName"]: alarm for alarm in shown}["Page"]

    assert composite()["AlarmRule"] == 'ALARM("One") AND NOT ALARM(Two)'
    until(lambda: composite()["StateValue"] == "OK", "it is not judged")
    watch.set_alarm_state(AlarmName="One", StateValue="ALARM", StateReason="a test")
    until(lambda: composite()["StateValue"] == "ALARM", "it does not follow")
    shown = watch.describe_alarms(AlarmNames=["Page"])
    assert shown["CompositeAlarms"] == []  # only when they are asked for
    with pytest.raises(ClientError, match="does not exist"):
        watch.put_composite_alarm(AlarmName="Wrong", AlarmRule="ALARM(Nobody)")


def test_metric_math_and_search_are_computed(watch) -> None:
    moment = datetime.now(timezone.utc).replace(second=0, microsecond=0) - timedelta(minutes=5)
    for gpu, value in (("0", 10), ("1", 30)):
        dimensions = [{"Name": "InstanceId", "Value": "i-9"}, {"Name": "index", "Value": gpu}]
        datum = {
            "MetricName": "used",
            "Timestamp": moment,
            "Value": value,
            "Dimensions": dimensions,
        }
        watch.put_metric_data(Namespace="Math", MetricData=[datum])
    search = "SEARCH('{Math,InstanceId,index} MetricName=\"used\" i-9', 'Average', 60)"
    found = watch.get_metric_data(
        MetricDataQueries=[
            {"Id": "all", "Expression": search},
            {"Id": "most", "Expression": "MAX(all) / 2", "Label": "most"},
            {"Id": "filled", "Expression": "FILL(AVG(all), 0)", "ReturnData": True},
        ],
        StartTime=moment,
        EndTime=moment + timedelta(minutes=2),
        ScanBy="TimestampAscending",
    )["MetricDataResults"]
    shown = [(metric["Id"], metric["Label"], metric["Values"]) for metric in found]
    assert shown == [
        ("all", "i-9 0 used", [10.0]),
        ("all", "i-9 1 used", [30.0]),
        ("most", "most", [15.0]),
        ("filled", "filled", [20.0, 0.0]),
    ]


def test_filters_are_kept_by_name_and_end_with_their_group(logs) -> None:
    logs.create_log_group(logGroupName="/other", logGroupClass="INFREQUENT_ACCESS")
    transformation = {"metricName": "a", "metricNamespace": "Kiln", "metricValue": "1"}
    for pattern in ("first", "second"):
        logs.put_metric_filter(
            logGroupName=GROUP,
            filterName="one",
            filterPattern=pattern,
            metricTransformations=[transformation],
        )
    found = logs.describe_metric_filters(logGroupName=GROUP, filterNamePrefix="one")
    assert [pattern["filterPattern"] for pattern in found["metricFilters"]] == ["second"]
    with pytest.raises(ClientError, match="Invalid metric filter"):
        logs.put_metric_filter(
            logGroupName=GROUP,
            filterName="wrong",
            filterPattern="{ $.a == 1 }",
            metricTransformations=[transformation],
        )
    with pytest.raises(ClientError, match="not supported for this log class"):
        logs.put_metric_filter(
            logGroupName="/other",
            filterName="one",
            filterPattern="a",
            metricTransformations=[transformation],
        )
    (shown,) = logs.describe_log_groups(logGroupNamePrefix="/other")["logGroups"]
    assert shown["logGroupClass"] == "INFREQUENT_ACCESS"
    tested = logs.test_metric_filter(
        filterPattern="[..., xid = 79]", logEventMessages=["Xid 13", "Xid 79"]
    )
    assert [match["eventNumber"] for match in tested["matches"]] == [2]
    found = logs.filter_log_events(logGroupName=GROUP, filterPattern="{ $.xid >= 79 }")
    assert [json.loads(event["message"])["xid"] for event in found["events"]] == [79]


def test_any_text_is_a_log_event_also_one_that_is_almost_a_metric(logs, watch, client) -> None:
    directive = {"Namespace": "Almost", "Metrics": [{"Name": "v"}], "Dimensions": [[]]}

    def almost(**changed: Any) -> str:
        about = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}
        return json.dumps({"v": 1, "_aws": about | changed})

    messages = [
        "[" * 5000,
        '{"a":' * 5000,
        '{"a":' * 900 + "1" + "}" * 900,
        '{"latency": 1' + "0" * 400 + "}",
        '{"latency": NaN}',
        almost(Timestamp=10**30),
        almost(CloudWatchMetrics=[1]),
        almost(CloudWatchMetrics=7),
        *(
            almost(CloudWatchMetrics=[directive | changed])
            for changed in (
                {"Namespace": 5},
                {"Namespace": ""},
                {"Metrics": ["v"]},
                {"Metrics": [{}]},
                {"Metrics": [{"Name": ["v"]}]},
                {"Dimensions": ["ab", 3]},
                {"Dimensions": [[{}]]},
            )
        ),
        almost(),
    ]
    group = "/kiln/any"
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="a")
    transformation = {"metricName": "slow", "metricNamespace": "Any", "metricValue": "$.latency"}
    logs.put_metric_filter(
        logGroupName=group,
        filterName="slow",
        filterPattern="{ $.latency > 1 }",
        metricTransformations=[transformation],
    )
    now = int(time.time() * 1000)
    for message in messages:
        events = [{"timestamp": now, "message": message}]
        logs.put_log_events(logGroupName=group, logStreamName="a", logEvents=events)
    kept = logs.get_log_events(logGroupName=group, logStreamName="a", startFromHead=True)["events"]
    assert [event["message"] for event in kept] == messages
    assert logs.filter_log_events(logGroupName=group, filterPattern="{ $.a = 1 }")["events"] == []
    assert watch.list_metrics(Namespace="Any")["Metrics"] == []
    (metric,) = watch.list_metrics(Namespace="Almost")["Metrics"]
    assert metric["MetricName"] == "v"


@pytest.mark.parametrize("text", ["1 / 0", "m ^ 0.5", "10 ^ 400"])
def test_what_cannot_be_computed_is_an_error_of_the_expression_or_no_value(text, watch) -> None:
    watch.put_metric_data(Namespace="Odd", MetricData=[{"MetricName": "m", "Value": -1}])
    now = datetime.now(timezone.utc)
    metric = {"Namespace": "Odd", "MetricName": "m"}
    queries = [
        {"Id": "m", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}},
        {"Id": "e", "Expression": text},
    ]
    span = {"StartTime": now - timedelta(minutes=5), "EndTime": now + timedelta(minutes=1)}
    if text.startswith("m"):
        answer = watch.get_metric_data(MetricDataQueries=queries, **span)["MetricDataResults"]
        assert answer[0]["Values"][0] < 0
        assert answer[1]["Values"] == []
        return
    with pytest.raises(ClientError) as caught:
        watch.get_metric_data(MetricDataQueries=queries, **span)
    assert caught.value.response["Error"]["Code"] == "ValidationError"


@pytest.mark.parametrize(
    ("service", "call", "request_", "code"),
    [
        ("cloudwatch", "describe_alarms", {"NextToken": "x"}, "InvalidNextToken"),
        ("ssm", "list_commands", {"NextToken": "x"}, "InvalidNextToken"),
        ("ssm", "describe_instance_information", {"NextToken": "x"}, "InvalidNextToken"),
        (
            "logs",
            "test_metric_filter",
            {"filterPattern": "{ $.a = ", "logEventMessages": ["x"]},
            "InvalidParameterException",
        ),
    ],
)
def test_a_token_or_a_pattern_that_is_none_is_refused_as_the_service_does(
    service: str, call: str, request_: dict[str, Any], code: str, client: Callable[..., Any]
) -> None:
    with pytest.raises(ClientError) as caught:
        getattr(client(service), call)(**request_)
    assert caught.value.response["Error"]["Code"] == code
