"""A call that lacks a required parameter is refused in its service's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from devel import lab_api
from lab.api import missing_parameters

# One lab for all tests of this file, wherever they run.
pytestmark = pytest.mark.xdist_group("lab_missing_parameters")
NULL = "Value null at '{}' failed to satisfy constraint: Member must not be null"
ONE = f"1 validation error detected: {NULL}"
ROLE = "arn:aws:iam::123456789012:role/r"
# Service, call, what it is given; the answer's code and message.
LACKING: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("ec2", "create_image", {"Name": "a name"}, "MissingParameter",
     "The request must contain the parameter InstanceId"),
    # Their names in requests are not those of the model, and in errors yet others.
    ("ec2", "import_key_pair", {"KeyName": "k"}, "MissingParameter",
     "The request must contain the parameter PublicKeyMaterial"),
    ("ec2", "create_security_group", {"GroupName": "g"}, "MissingParameter",
     "The request must contain the parameter GroupDescription"),
    ("ec2", "create_tags", {"Tags": [{"Key": "k", "Value": "v"}]}, "MissingParameter",
     "The request must contain the parameter resourceIdSet"),
    ("sqs", "send_message", {"MessageBody": "b"}, "MissingParameter",
     "The request must contain the parameter QueueUrl."),
    ("sns", "subscribe", {"TopicArn": "t"}, "InvalidParameter",
     "Invalid parameter: Protocol Reason: no value for required parameter"),
    ("cloudwatch", "list_tags_for_resource", {}, "MissingParameter",
     "The parameter ResourceARN is required."),
    ("logs", "create_log_stream", {"logStreamName": "s"}, "InvalidParameterException",
     ONE.format("logGroupName")),
    ("ssm", "send_command", {}, "ValidationException", ONE.format("documentName")),
    ("kms", "describe_key", {}, "ValidationException", ONE.format("keyId")),
    ("sts", "assume_role", {"RoleArn": ROLE}, "ValidationError", ONE.format("roleSessionName")),
    ("iam", "get_role", {}, "ValidationError", ONE.format("roleName")),
    ("autoscaling", "delete_auto_scaling_group", {}, "ValidationError",
     ONE.format("autoScalingGroupName")),
]  # fmt: skip
NESTED: list[tuple[str, str, dict[str, Any], str]] = [
    ("ec2", "create_fleet",
     {"LaunchTemplateConfigs": [{"LaunchTemplateSpecification": {"LaunchTemplateName": "l"}}],
      "TargetCapacitySpecification": {"SpotTargetCapacity": 1}},
     "The request must contain the parameter TargetCapacitySpecification.TotalTargetCapacity"),
    ("logs", "put_log_events",
     {"logGroupName": "g", "logStreamName": "s", "logEvents": [{"message": "m"}]},
     ONE.format("logEvents.1.member.timestamp")),
    ("iam", "create_user",
     {"UserName": "u", "Tags": [{"Key": "k", "Value": "v"}, {"Key": "k"}]},
     ONE.format("tags.2.member.value")),
    ("cloudwatch", "put_metric_data",
     {"Namespace": "n", "MetricData": [{"MetricName": "m", "Dimensions": [{"Name": "d"}]}]},
     "The parameter MetricData.member.1.Dimensions.member.1.Value is required."),
]  # fmt: skip
SEVERAL = [
    ("sts", "assume_role",
     f"2 validation errors detected: {NULL.format('roleArn')}; {NULL.format('roleSessionName')}"),
    ("cloudwatch", "put_composite_alarm",
     "The parameter AlarmName is required.\nThe parameter AlarmRule is required."),
    ("ec2", "attach_volume", "The request must contain the parameter Device"),
]  # fmt: skip
# Complete, and nothing that the call is about is there.
COMPLETE: list[tuple[str, str, dict[str, Any], str]] = [
    ("ec2", "describe_images", {"ImageIds": ["ami-0123456789abcdef0"]}, "InvalidAMIID.NotFound"),
    ("iam", "get_role", {"RoleName": "nobody"}, "NoSuchEntity"),
    ("ssm", "get_parameter", {"Name": "none"}, "ParameterNotFound"),
]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., tuple[str, str]]]:
    """The code and message of a call's answer. The client sends what it is given as it is."""
    as_given = Config(parameter_validation=False, retries={"total_max_attempts": 1})
    with lab_api.serving(tmp_path_factory.mktemp("lab")) as endpoint:

        def answer(service: str, call: str, **how: Any) -> tuple[str, str]:
            client: Any = boto3.client(
                service,  # type: ignore[call-overload]
                endpoint_url=endpoint,
                region_name="us-east-1",
                aws_access_key_id="KILN",
                aws_secret_access_key="secret",
                config=as_given,
            )
            with pytest.raises(ClientError) as caught:
                getattr(client, call)(**how)
            assert 400 <= caught.value.response["ResponseMetadata"]["HTTPStatusCode"] < 500
            error = caught.value.response["Error"]
            return error["Code"], error["Message"]

        yield answer


@pytest.mark.parametrize(("service", "call", "how", "code", "message"), LACKING)
def test_each_service_says_in_its_own_words_what_is_missing(
    refused: Any, service: str, call: str, how: dict[str, Any], code: str, message: str
) -> None:
    assert refused(service, call, **how) == (code, message)


@pytest.mark.parametrize(("service", "call", "how", "message"), NESTED)
def test_a_member_of_a_list_or_a_structure_is_named_with_its_place(
    refused: Any, service: str, call: str, how: dict[str, Any], message: str
) -> None:
    assert refused(service, call, **how)[1] == message


@pytest.mark.parametrize(("service", "call", "message"), SEVERAL)
def test_ec2_reports_the_first_that_is_missing_and_others_all(
    refused: Any, service: str, call: str, message: str
) -> None:
    assert refused(service, call)[1] == message


def test_an_empty_value_is_missing_in_ec2_and_is_a_value_in_iam(refused: Any) -> None:
    code, _ = refused("ec2", "create_security_group", GroupName="g", Description="")
    assert code == "MissingParameter"
    assert "must not be null" not in refused("iam", "get_role", RoleName="")[1]


def test_an_entry_of_a_batch_does_not_refuse_the_batch(refused: Any) -> None:
    queue = "http://127.0.0.1/123456789012/none"
    code, _ = refused("sqs", "send_message_batch", QueueUrl=queue, Entries=[{"Id": "1"}])
    assert code != "MissingParameter"


def test_a_call_that_the_lab_lacks_is_refused_for_what_is_missing_first(refused: Any) -> None:
    assert refused("ssm", "create_association")[1] == ONE.format("name")
    assert refused("ssm", "create_association", Name="n")[0] == "UnknownOperationException"


@pytest.mark.parametrize(("service", "call", "how", "code"), COMPLETE)
def test_a_complete_call_reaches_its_service(
    refused: Any, service: str, call: str, how: dict[str, Any], code: str
) -> None:
    assert refused(service, call, **how)[0] == code


def signed(service: str, **more: str) -> dict[str, Any]:
    scope = f"Credential=KILN/20260101/us-east-1/{service}/aws4_request"
    return {"HTTP_AUTHORIZATION": scope, "PATH_INFO": "/", "REQUEST_METHOD": "POST", **more}


def reaches(body: bytes, environ: dict[str, Any]) -> bool:
    """Whether a request gets to what answers complete calls."""
    reached: list[bytes] = []
    inner = missing_parameters.refusing(lambda environ, start: reached)
    environ |= {"wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}
    answer = inner(environ, lambda *_: None)
    return answer is reached and environ["wsgi.input"].read() == body


@pytest.mark.parametrize("body", [b"{", b"[]", b'"a text"'])
def test_a_body_that_is_no_json_object_is_left_to_the_service(body: bytes) -> None:
    assert reaches(body, signed("ssm", HTTP_X_AMZ_TARGET="AmazonSSM.SendCommand"))


def test_a_null_is_missing() -> None:
    target = {"HTTP_X_AMZ_TARGET": "AmazonSSM.SendCommand"}
    given = json.dumps({"DocumentName": "AWS-RunShellScript"}).encode()
    assert reaches(given, signed("ssm", **target))
    assert not reaches(b'{"DocumentName": null}', signed("ssm", **target))


@pytest.mark.parametrize(
    ("service", "body"),
    [
        ("sqs", b"Action=SetQueueAttributes&QueueUrl=q&Attribute.1.Name=a&Attribute.1.Value=b"),
        ("ec2", b"Action=NoSuchCall&Version=2016-11-15"),
        ("route53", b"Action=CreateHostedZone"),
    ],
)
def test_what_no_model_describes_is_left_to_the_service(service: str, body: bytes) -> None:
    form = "application/x-www-form-urlencoded"
    assert reaches(body, signed(service, CONTENT_TYPE=form))


def test_each_answer_has_a_source_that_can_be_opened() -> None:
    answers = missing_parameters.answers().values()
    assert [answer.source for answer in answers if not answer.source.startswith("https://")] == []
