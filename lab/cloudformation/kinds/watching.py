"""AWS::Logs, AWS::CloudWatch, AWS::SNS and AWS::SSM."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from lab.cloudformation.errors import ResourceError
from lab.cloudformation.kinds.kind import Kind, Made, Place, Properties, without, words


def _group(place: Place, name: str, properties: Properties) -> Made:
    logs = place.client("logs")
    called = properties.get("LogGroupName") or place.new_name(name)
    more = {"logGroupClass": properties["LogGroupClass"]} if "LogGroupClass" in properties else {}
    if "KmsKeyId" in properties:
        more["kmsKeyId"] = properties["KmsKeyId"]
    logs.create_log_group(logGroupName=called, **more)
    arn = f"arn:aws:logs:{place.region}:{place.account}:log-group:{called}:*"
    return _changed_group(place, Made(called, {"Arn": arn}), properties)


def _changed_group(place: Place, made: Made, properties: Properties) -> Made:
    logs = place.client("logs")
    if days := properties.get("RetentionInDays"):
        logs.put_retention_policy(logGroupName=made.id, retentionInDays=int(days))
    else:
        logs.delete_retention_policy(logGroupName=made.id)
    return made


def _without_group(place: Place, made: Made) -> None:
    logs = place.client("logs")
    with contextlib.suppress(logs.exceptions.ResourceNotFoundException):
        logs.delete_log_group(logGroupName=made.id)


def _filter(place: Place, name: str, properties: Properties) -> Made:
    called = properties.get("FilterName") or place.new_name(name)
    return _changed_filter(place, Made(called, {"group": properties["LogGroupName"]}), properties)


def _changed_filter(place: Place, made: Made, properties: Properties) -> Made:
    shown = [
        _transformation(transformation) for transformation in properties["MetricTransformations"]
    ]
    place.client("logs").put_metric_filter(
        logGroupName=properties["LogGroupName"],
        filterName=made.id,
        filterPattern=properties["FilterPattern"],
        metricTransformations=shown,
    )
    return made


def _transformation(properties: Properties) -> dict[str, Any]:
    renamed = {key[0].lower() + key[1:]: value for key, value in properties.items()}
    if "dimensions" in renamed:
        renamed["dimensions"] = {
            dimension["Key"]: dimension["Value"] for dimension in renamed["dimensions"]
        }
    if "defaultValue" in renamed:
        renamed["defaultValue"] = float(renamed["defaultValue"])
    return renamed


def _without_filter(place: Place, made: Made) -> None:
    logs = place.client("logs")
    with contextlib.suppress(logs.exceptions.ResourceNotFoundException):
        logs.delete_metric_filter(logGroupName=made.attributes["group"], filterName=made.id)


def _alarm(place: Place, name: str, properties: Properties) -> Made:
    called = properties.get("AlarmName") or place.new_name(name)
    return _changed_alarm(place, Made(called), properties)


_WHOLE = ("EvaluationPeriods", "DatapointsToAlarm", "Period")


def _changed_alarm(place: Place, made: Made, properties: Properties) -> Made:
    alarm = without(properties, "AlarmName", "Tags")
    alarm |= {key: int(alarm[key]) for key in _WHOLE if key in alarm}
    if "Threshold" in alarm:
        alarm["Threshold"] = float(alarm["Threshold"])
    place.client("cloudwatch").put_metric_alarm(
        AlarmName=made.id, Tags=place.all_tags(properties.get("Tags")), **alarm
    )
    return Made(made.id, {"Arn": _alarm_arn(place, made.id)})


def _composite(place: Place, name: str, properties: Properties) -> Made:
    called = properties.get("AlarmName") or place.new_name(name)
    return _changed_composite(place, Made(called), properties)


def _changed_composite(place: Place, made: Made, properties: Properties) -> Made:
    alarm = without(properties, "AlarmName", "Tags")
    place.client("cloudwatch").put_composite_alarm(AlarmName=made.id, **alarm)
    return Made(made.id, {"Arn": _alarm_arn(place, made.id)})


def _alarm_arn(place: Place, name: str) -> str:
    return f"arn:aws:cloudwatch:{place.region}:{place.account}:alarm:{name}"


def _without_alarm(place: Place, made: Made) -> None:
    place.client("cloudwatch").delete_alarms(AlarmNames=[made.id])


def _dashboard(place: Place, name: str, properties: Properties) -> Made:
    called = properties.get("DashboardName") or place.new_name(name)
    return _changed_dashboard(place, Made(called), properties)


def _changed_dashboard(place: Place, made: Made, properties: Properties) -> Made:
    try:
        json.loads(properties["DashboardBody"])
    except ValueError as error:
        raise ResourceError(f"The field DashboardBody must be valid JSON: {error}") from None
    place.client("cloudwatch").put_dashboard(
        DashboardName=made.id, DashboardBody=properties["DashboardBody"]
    )
    return made


def _without_dashboard(place: Place, made: Made) -> None:
    place.client("cloudwatch").delete_dashboards(DashboardNames=[made.id])


def _topic(place: Place, name: str, properties: Properties) -> Made:
    called = properties.get("TopicName") or place.new_name(name)
    key = properties.get("KmsMasterKeyId")
    attributes = {"KmsMasterKeyId": key} if key else {}
    arn = place.client("sns").create_topic(
        Name=called, Attributes=attributes, Tags=place.all_tags(properties.get("Tags"))
    )["TopicArn"]
    return Made(arn, {"TopicArn": arn, "TopicName": called})


def _changed_topic(place: Place, made: Made, properties: Properties) -> Made:
    place.client("sns").set_topic_attributes(
        TopicArn=made.id,
        AttributeName="KmsMasterKeyId",
        AttributeValue=properties.get("KmsMasterKeyId", ""),
    )
    return made


def _without_topic(place: Place, made: Made) -> None:
    place.client("sns").delete_topic(TopicArn=made.id)


def _topic_policy(place: Place, name: str, properties: Properties) -> Made:
    return _changed_topic_policy(place, Made(place.new_name(name)), properties)


def _changed_topic_policy(place: Place, made: Made, properties: Properties) -> Made:
    for topic in properties["Topics"]:
        place.client("sns").set_topic_attributes(
            TopicArn=topic,
            AttributeName="Policy",
            AttributeValue=json.dumps(properties["PolicyDocument"]),
        )
    return made


def _subscription(place: Place, name: str, properties: Properties) -> Made:
    arn = place.client("sns").subscribe(
        TopicArn=properties["TopicArn"],
        Protocol=properties["Protocol"],
        Endpoint=properties["Endpoint"],
        ReturnSubscriptionArn=True,
    )["SubscriptionArn"]
    return Made(arn)


def _without_subscription(place: Place, made: Made) -> None:
    place.client("sns").unsubscribe(SubscriptionArn=made.id)


def _parameter(place: Place, name: str, properties: Properties) -> Made:
    called = properties.get("Name") or place.new_name(name)
    ssm = place.client("ssm")
    _tagless(ssm, called, properties, overwrite=False)
    return Made(called, {"Type": properties["Type"], "Value": properties["Value"]})


def _changed_parameter(place: Place, made: Made, properties: Properties) -> Made:
    _tagless(place.client("ssm"), made.id, properties, overwrite=True)
    return Made(made.id, {"Type": properties["Type"], "Value": properties["Value"]})


def _tagless(ssm: Any, name: str, properties: Properties, *, overwrite: bool) -> None:
    ssm.put_parameter(Name=name, Overwrite=overwrite, **without(properties, "Name", "Tags"))


def _without_parameter(place: Place, made: Made) -> None:
    ssm = place.client("ssm")
    with contextlib.suppress(ssm.exceptions.ParameterNotFound):
        ssm.delete_parameter(Name=made.id)


def _nothing(place: Place, made: Made) -> None:
    """Goes with another resource."""


_OF_ALARMS = words(
    "AlarmName AlarmDescription ActionsEnabled AlarmActions OKActions InsufficientDataActions Tags"
)
KINDS = {
    "AWS::Logs::LogGroup": Kind(
        _group,
        _without_group,
        words("LogGroupName LogGroupClass RetentionInDays KmsKeyId"),
        _changed_group,
        words("LogGroupName LogGroupClass"),
    ),
    "AWS::Logs::MetricFilter": Kind(
        _filter,
        _without_filter,
        words("FilterName LogGroupName FilterPattern MetricTransformations"),
        _changed_filter,
        words("FilterName LogGroupName"),
    ),
    "AWS::CloudWatch::Alarm": Kind(
        _alarm,
        _without_alarm,
        _OF_ALARMS
        | words("MetricName Namespace Dimensions Statistic ExtendedStatistic Period Unit Metrics")
        | words(
            "EvaluationPeriods DatapointsToAlarm Threshold ComparisonOperator TreatMissingData"
        ),
        _changed_alarm,
        words("AlarmName"),
    ),
    "AWS::CloudWatch::CompositeAlarm": Kind(
        _composite,
        _without_alarm,
        _OF_ALARMS | words("AlarmRule"),
        _changed_composite,
        words("AlarmName"),
    ),
    "AWS::CloudWatch::Dashboard": Kind(
        _dashboard,
        _without_dashboard,
        words("DashboardName DashboardBody"),
        _changed_dashboard,
        words("DashboardName"),
    ),
    "AWS::SNS::Topic": Kind(
        _topic,
        _without_topic,
        words("TopicName KmsMasterKeyId Tags"),
        _changed_topic,
        words("TopicName"),
    ),
    "AWS::SNS::TopicPolicy": Kind(
        _topic_policy, _nothing, words("Topics PolicyDocument"), _changed_topic_policy
    ),
    "AWS::SNS::Subscription": Kind(
        _subscription, _without_subscription, words("TopicArn Protocol Endpoint")
    ),
    "AWS::SSM::Parameter": Kind(
        _parameter,
        _without_parameter,
        words("Name Type Tier Description Value DataType AllowedPattern"),
        _changed_parameter,
        words("Name"),
    ),
}
