"""The encrypted topic that the alarms report to, and who gets its messages."""

from __future__ import annotations

from typing import Any

from kiln.telemetry.stack.inputs import (
    Resource,
    attribute,
    either,
    is_given,
    reference,
    substituted,
)

PARAMETERS: dict[str, Any] = {
    "Email": {
        "Type": "String",
        "Default": "",
        "Description": "who gets the alarms; empty for nobody",
    },
    "TopicKeyArn": {
        "Type": "String",
        "Default": "",
        "Description": "KMS key of the topic; it must let cloudwatch.amazonaws.com use it; empty: "
        "the stack makes one",
    },
}
CONDITIONS = {
    "HasEmail": is_given("Email"),
    "MakesTopicKey": {"Fn::Not": [is_given("TopicKeyArn")]},
}
OUTPUTS = {"TopicArn": reference("Topic")}


def topic_resources() -> dict[str, Resource]:
    """The topic, its key and policy. With alias/aws/sns no alarm could report to it."""
    of_account = {"StringEquals": {"aws:SourceAccount": reference("AWS::AccountId")}}
    cloudwatch = {"Service": "cloudwatch.amazonaws.com"}
    root = substituted("arn:${AWS::Partition}:iam::${AWS::AccountId}:root")
    return {
        "TopicKey": {
            "Type": "AWS::KMS::Key",
            "Condition": "MakesTopicKey",
            "DeletionPolicy": "Delete",
            "UpdateReplacePolicy": "Delete",
            "Properties": {
                "Description": substituted("messages of the alarms of ${AWS::StackName}"),
                "EnableKeyRotation": True,
                "PendingWindowInDays": 7,
                "KeyPolicy": {
                    "Version": "2012-10-17",
                    "Statement": [
                        {
                            "Sid": "Account",
                            "Effect": "Allow",
                            "Principal": {"AWS": root},
                            "Action": "kms:*",
                            "Resource": "*",
                        },
                        {
                            "Sid": "Alarms",
                            "Effect": "Allow",
                            "Principal": cloudwatch,
                            "Action": ["kms:Decrypt", "kms:GenerateDataKey*"],
                            "Resource": "*",
                            "Condition": of_account,
                        },
                    ],
                },
            },
        },
        "Topic": {
            "Type": "AWS::SNS::Topic",
            "Properties": {
                "KmsMasterKeyId": either(
                    "MakesTopicKey", attribute("TopicKey", "Arn"), reference("TopicKeyArn")
                )
            },
        },
        "TopicPolicy": {
            "Type": "AWS::SNS::TopicPolicy",
            "Properties": {
                "Topics": [reference("Topic")],
                "PolicyDocument": {
                    "Version": "2012-10-17",
                    "Statement": [
                        {
                            "Sid": "Alarms",
                            "Effect": "Allow",
                            "Principal": cloudwatch,
                            "Action": "sns:Publish",
                            "Resource": reference("Topic"),
                            "Condition": of_account,
                        }
                    ],
                },
            },
        },
        "Subscription": {
            "Type": "AWS::SNS::Subscription",
            "Condition": "HasEmail",
            "Properties": {
                "TopicArn": reference("Topic"),
                "Protocol": "email",
                "Endpoint": reference("Email"),
            },
        },
    }
