"""What the lab does of each call of the services beside EC2 that it has machines or data behind."""

from __future__ import annotations

import importlib

import botocore.session

from lab.ssm import front

# Service → moto's class of responses. Of SNS and SQS moto's own calls do what they do on AWS: a
# message that is published can be received.
_MOTO = {
    "cloudwatch": ("moto.cloudwatch.responses", "CloudWatchResponse"),
    "logs": ("moto.logs.responses", "LogsResponse"),
    "ssm": ("moto.ssm.responses", "SimpleSystemManagerResponse"),
    "sns": ("moto.sns.responses", "SNSResponse"),
    "sqs": ("moto.sqs.responses", "SQSResponse"),
    "scheduler": ("moto.scheduler.responses", "EventBridgeSchedulerResponse"),
}
_KEPT = {
    "cloudwatch": ("PutMetricData", "GetMetricData", "ListMetrics"),
    "logs": (
        *("CreateLogGroup", "CreateLogStream", "DeleteLogGroup", "DescribeLogGroups"),
        *("DescribeLogStreams", "PutLogEvents", "GetLogEvents", "FilterLogEvents"),
        "PutRetentionPolicy",
    ),
}
_DELIVERED = {
    "sns": ("CreateTopic", "DeleteTopic", "Publish", "PublishBatch", "Subscribe", "Unsubscribe"),
    "sqs": (
        *("CreateQueue", "DeleteQueue", "DeleteMessage", "DeleteMessageBatch", "PurgeQueue"),
        *("ReceiveMessage", "SendMessage", "SendMessageBatch", "GetQueueAttributes"),
        *("ChangeMessageVisibility", "GetQueueUrl"),
    ),
}


def table() -> dict[str, str]:
    """`service:Call` → real, booked only or refused, for every call of these services' models."""
    real = {**_KEPT, **_DELIVERED, "ssm": front.REAL}
    session, operations = botocore.session.get_session(), {}
    for service, (module, name) in _MOTO.items():
        moto = getattr(importlib.import_module(module), name)
        for call in session.get_service_model(service).operation_names:
            there = hasattr(moto, botocore.xform_name(call))
            kind = (
                "real" if call in real.get(service, ()) else "booked only" if there else "refused"
            )
            operations[f"{service}:{call}"] = kind
    return operations
