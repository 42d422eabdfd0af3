"""What IAM allows in the lab: policies in the forms of AWS's documentation, requests as boto3 sends
them."""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from moto.ec2.models import ec2_backends

from kiln.base import plain_yaml
from kiln.base.paths import ROOT
from lab.access import gate, holders, iam_policy, of_ec2, of_s3, questions
from lab.access.conditions import Context, hold
from lab.access.iam_policy import Attached, Policies, Question
from lab.access.of_ec2 import Resource
from lab.access.principals import Caller
from tests.unit.test_lab_auth import Call

ACCOUNT = "123456789012"
ROLE = Caller(
    f"arn:aws:sts::{ACCOUNT}:assumed-role/worker/i-0123456789abcdef0",
    f"arn:aws:iam::{ACCOUNT}:role/worker",
    "AssumedRole",
    "AROAEXAMPLE:i-0123456789abcdef0",
    ACCOUNT,
    tags=(("team", "gpu"),),
    address="10.201.1.2",
)
TAGS = {"i-0123456789abcdef0": {"team": "gpu"}, "i-0fedcba9876543210": {"team": "other"}}
OWNERS = {"ami-0123456789abcdef0": ACCOUNT, "ami-0fedcba9876543210": "amazon"}
KEYS = {"bake": {"team": "gpu"}}


def look(kind: str, name: str, region: str) -> Resource:
    return Resource((KEYS if kind == "key-pair" else TAGS).get(name, {}), OWNERS.get(name))


LOOK = holders.look


def document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(action: Any, resource: Any = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def deny(action: Any, resource: Any = "*", **more: Any) -> dict[str, Any]:
    return {**allow(action, resource, **more), "Effect": "Deny"}


class _SentError(Exception):
    """Carries the request that a client was about to send."""


@cache
def _client(service: str) -> Any:
    """A client that raises _SentError instead of sending, one for all calls: to create it takes
    longer than they do."""
    client: Any = boto3.client(
        service,  # type: ignore[call-overload]
        region_name="us-east-1",
        aws_access_key_id="ASIAEXAMPLE",
        aws_secret_access_key="a-secret",
        config=Config(retries={"max_attempts": 1}),
    )

    def stop(request: AWSRequest, **_: Any) -> None:
        raise _SentError(request)

    client.meta.events.register("before-send", stop)
    return client


def refused(
    service: str,
    call: Call,
    *statements: dict[str, Any],
    attached: Attached | None = None,
    caller: Caller = ROLE,
    **limits: str,
) -> str:
    """The text of the refusal of a call that boto3 makes; "" when it is allowed."""
    with pytest.raises(_SentError) as sent:
        call(_client(service))
    request: AWSRequest = sent.value.args[0]
    parts = urlsplit(request.url)
    environ = {
        "REQUEST_METHOD": request.method,
        "PATH_INFO": parts.path,
        "QUERY_STRING": parts.query,
        "HTTP_HOST": parts.netloc,
    }
    for name, value in request.headers.items():
        text = value.decode() if isinstance(value, bytes) else str(value)
        variable = name.upper().replace("-", "_")
        environ[variable if variable == "CONTENT_TYPE" else f"HTTP_{variable}"] = text
    body = request.body or b""
    body = (
        body.encode() if isinstance(body, str) else body.read() if hasattr(body, "read") else body
    )
    policies = Policies((document(*statements),), **limits)

    def theirs(action: str, arn: str) -> Attached | None:
        return None if action == "iam:PassRole" else attached

    answer = gate.refusal("ASIAEXAMPLE", environ, body, lambda _: (caller, policies), look, theirs)
    return answer.body.decode() if answer else ""


MINE, OTHER = TAGS
GROUP = f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:/kiln/events"


def write(client: Any) -> Any:
    events = [{"timestamp": 1, "message": "m"}]
    return client.put_log_events(logGroupName="/kiln/events", logStreamName="a", logEvents=events)


def test_a_call_that_no_policy_allows_is_denied_in_the_services_own_words() -> None:
    text = refused("ec2", lambda ec2: ec2.terminate_instances(InstanceIds=[MINE]), allow("s3:*"))
    assert "<Code>UnauthorizedOperation</Code>" in text
    assert f"User: {ROLE.arn} is not authorized to perform: ec2:TerminateInstances" in text
    assert "because no identity-based policy allows the ec2:TerminateInstances action" in text
    json_ = json.loads(refused("logs", write, allow("ec2:*")))
    assert json_["__type"] == "AccessDeniedException"
    assert "<Code>AccessDenied</Code>" in refused(
        "sqs", _queue, allow("ec2:*")
    ) or "AccessDenied" in refused("sqs", _queue, allow("ec2:*"))


def _queue(sqs: Any) -> Any:
    return sqs.send_message(
        QueueUrl=f"https://sqs.us-east-1.amazonaws.com/{ACCOUNT}/q", MessageBody="m"
    )


def get(key: str) -> Call:
    return lambda s3: s3.get_object(Bucket="b-1", Key=key)


def listing(s3: Any) -> Any:
    return s3.list_objects_v2(Bucket="b-1")


def cors(s3: Any) -> Any:
    return s3.get_bucket_cors(Bucket="b-1")


def describe(ec2: Any) -> Any:
    return ec2.describe_instances()


def address(ec2: Any) -> Any:
    return ec2.allocate_address()


def identity(sts: Any) -> Any:
    return sts.get_caller_identity()


def stop(*ids: str) -> Call:
    return lambda ec2: ec2.stop_instances(InstanceIds=list(ids))


def when(key: str, value: str, operator: str = "StringEquals") -> dict[str, Any]:
    return {"Condition": {operator: {key: value}}}


def parameters(*names: str) -> Call:
    return lambda ssm: ssm.get_parameters(Names=list(names))


def put(namespace: str) -> Call:
    return lambda watch: watch.put_metric_data(Namespace=namespace, MetricData=[])


def listed(prefix: str) -> Call:
    return lambda s3: s3.list_objects_v2(Bucket="b-1", Prefix=prefix)


RUNS = when("s3:prefix", "runs/*", "StringLike")
PARAMETERS = "arn:aws:ssm:*:*:parameter/a/*"
INSTANCES = "arn:aws:ec2:*:*:instance/*"
QUEUE = f"arn:aws:sqs:us-east-1:{ACCOUNT}"
OWN = when("ec2:ResourceTag/team", "${aws:PrincipalTag/team}")
KILN = allow("cloudwatch:PutMetricData", **when("cloudwatch:namespace", "Kiln"))
ABROAD = when("aws:RequestedRegion", "eu-west-1")
# Name → service, call, whether it is allowed, and the statements.
CASES: dict[str, tuple[Any, ...]] = {
    "group": ("logs", write, True, allow("logs:Put*", f"{GROUP}:*")),
    "other-group": ("logs", write, False, allow("logs:Put*", f"{GROUP}-other:*")),
    "case-of-actions": ("logs", write, True, allow("LOGS:putlogevents")),
    "deny": ("logs", write, False, allow("logs:*"), deny("logs:Put*", f"{GROUP}:*")),
    "deny-of-another": (
        "logs",
        write,
        True,
        allow("logs:*"),
        deny("logs:Put*", f"{GROUP}-other:*"),
    ),
    "not-action": ("logs", write, False, {"NotAction": "logs:*"}),
    "not-another-action": ("logs", write, True, {"NotAction": "ec2:*"}),
    "not-resource": ("logs", write, False, {"Action": "logs:*", "NotResource": f"{GROUP}:*"}),
    "queue": ("sqs", _queue, True, allow("sqs:SendMessage", f"{QUEUE}:q")),
    "other-queue": ("sqs", _queue, False, allow("sqs:SendMessage", f"{QUEUE}:r")),
    "parameter": ("ssm", parameters("/a/b"), True, allow("ssm:Get*", PARAMETERS)),
    "of-aws": (
        "ssm",
        parameters("/aws/service/x"),
        True,
        allow("ssm:Get*", "arn:aws:ssm:*::parameter/aws/*"),
    ),
    "of-aws-not-ours": (
        "ssm",
        parameters("/aws/service/x"),
        False,
        allow("ssm:Get*", "arn:aws:ssm:*:123456789012:parameter/*"),
    ),
    "one-of-two": ("ssm", parameters("/a/b", "/c"), False, allow("ssm:Get*", PARAMETERS)),
    "object": ("s3", get("x/y z"), True, allow("s3:GetObject", "arn:aws:s3:::b-1/x/*")),
    "object-of-bucket": ("s3", get("x"), False, allow("s3:GetObject", "arn:aws:s3:::b-1")),
    "bucket": ("s3", listing, True, allow("s3:ListBucket", "arn:aws:s3:::b-1")),
    "prefix": ("s3", listed("runs/a/"), True, allow("s3:ListBucket", **RUNS)),
    "other-prefix": ("s3", listed("other/"), False, allow("s3:ListBucket", **RUNS)),
    "no-prefix": ("s3", listing, False, allow("s3:ListBucket", **RUNS)),
    "unknown-to-the-lab": ("s3", cors, False, allow("s3:GetBucket*")),
    "tag": ("ec2", stop(MINE), True, allow("ec2:Stop*", **OWN)),
    "other-tag": ("ec2", stop(MINE, OTHER), False, allow("ec2:Stop*", **OWN)),
    "kind": ("ec2", stop(MINE), True, allow("ec2:Stop*", INSTANCES)),
    "question": ("ec2", describe, True, allow("ec2:Describe*")),
    "question-of-one": ("ec2", describe, False, allow("ec2:Describe*", INSTANCES)),
    "region": ("ec2", describe, False, allow("ec2:*", **ABROAD)),
    "resource-unknown": ("ec2", address, False, allow("ec2:*", "arn:aws:ec2:*:*:elastic-ip/*")),
    "who-am-i": ("sts", identity, True, deny("sts:*")),
    "namespace": ("cloudwatch", put("Kiln"), True, KILN),
    "other-namespace": ("cloudwatch", put("Else"), False, KILN),
}


@pytest.mark.parametrize("name", CASES)
def test_a_policy_decides_about_a_call_and_its_resources(name: str) -> None:
    service, call, allowed, *statements = CASES[name]
    whole = [{"Effect": "Allow", "Resource": "*", **statement} for statement in statements]
    whole = [
        {k: v for k, v in statement.items() if k != "Resource" or "NotResource" not in statement}
        for statement in whole
    ]
    assert (refused(service, call, *whole) == "") is allowed


def launch(tags: dict[str, str]) -> Call:
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    return lambda ec2: ec2.run_instances(
        ImageId="ami-0123456789abcdef0",
        InstanceType="g4dn.xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": listed}] if tags else [],
    )


def test_a_launch_is_asked_of_each_resource_and_its_tags_by_themselves() -> None:
    small = when("ec2:InstanceType", "g4dn.xlarge")
    instance = allow("ec2:RunInstances", INSTANCES, **small)
    kinds = ("volume", "network-interface", "subnet", "security-group")
    others = [INSTANCES.replace("instance", kind) for kind in kinds]
    rest = allow("ec2:RunInstances", [*others, "arn:aws:ec2:*::image/*"])
    conditions = {
        **when("ec2:CreateAction", "RunInstances")["Condition"],
        "ForAllValues:StringEquals": {"aws:TagKeys": ["team"]},
    }
    tagging = allow("ec2:CreateTags", Condition=conditions)
    assert refused("ec2", launch({}), instance, rest) == ""
    assert "ec2:CreateTags" in refused("ec2", launch({"team": "gpu"}), instance, rest)
    assert refused("ec2", launch({"team": "gpu"}), instance, rest, tagging) == ""
    assert "ec2:CreateTags" in refused("ec2", launch({"x": "y"}), instance, rest, tagging)
    assert "instance/*" in refused("ec2", launch({}), rest)


def test_a_boundary_and_a_sessions_policy_must_allow_too() -> None:
    only = document(allow("logs:*"))
    everything = allow("*")
    assert refused("ec2", stop(MINE), everything) == ""
    assert "no permissions boundary allows" in refused("ec2", stop(MINE), everything, boundary=only)
    assert "no session policy allows" in refused("ec2", stop(MINE), everything, session=only)


def test_what_the_lab_cannot_judge_is_denied_and_says_so() -> None:
    strange = {"StringEquals": {"aws:SourceVpce": "vpce-1"}}
    for statements in (
        [allow("ec2:*", "*", Condition=strange)],
        [allow("ec2:*"), deny("ec2:*", "*", Condition=strange)],
    ):
        assert "does not judge a condition" in refused("ec2", stop(MINE), *statements)


# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
@pytest.mark.parametrize(
    "kept",
    [
        "[]",
        "not JSON",
        "[" * 5000,
        '{"Statement": ["x"]}',
        '{"Statement": {"Effect": "Deny", "Principal": "*", "Action": "*", "Condition": "x"}}',
    ],
)
def test_a_policy_that_cannot_be_read_allows_nothing_and_the_answer_is_the_services(
    kept: str,
) -> None:
    answer = refused("s3", get("x"), allow("s3:*"), attached=Attached(kept))
    assert "<Code>AccessDenied</Code>" in answer
    assert "AMI Kiln lab: a policy, or the request, cannot be read" in answer


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"StringLike": {"aws:PrincipalTag/job": "iam*"}}, True),
        ({"StringEquals": {"aws:PrincipalTag/job": "iam*"}}, False),
        ({"StringEqualsIgnoreCase": {"aws:PrincipalTag/job": "IAMUser-admin"}}, True),
        ({"StringNotEquals": {"aws:PrincipalTag/job": ["a", "b"]}}, True),
        ({"StringNotEquals": {"aws:PrincipalTag/none": "a"}}, True),
        ({"StringEquals": {"aws:PrincipalTag/none": "a"}}, False),
        ({"StringEqualsIfExists": {"aws:PrincipalTag/none": "a"}}, True),
        ({"Null": {"aws:PrincipalTag/none": "true"}}, True),
        ({"Null": {"aws:PrincipalTag/job": "true"}}, False),
        ({"NumericLessThanEquals": {"number": "10"}}, True),
        ({"NumericGreaterThan": {"number": "10"}}, False),
        ({"IpAddress": {"aws:SourceIp": ["203.0.113.0/24"]}}, True),
        ({"NotIpAddress": {"aws:SourceIp": ["203.0.113.0/24"]}}, False),
        ({"DateGreaterThan": {"aws:CurrentTime": "2020-01-01T00:00:00Z"}}, True),
        ({"DateLessThan": {"aws:CurrentTime": "2020-01-01T00:00:00Z"}}, False),
        ({"ArnLike": {"arn": "arn:aws:iam::*:role/w*"}}, True),
        ({"ArnNotLike": {"arn": "arn:aws:iam::*:role/w*"}}, False),
        ({"Bool": {"flag": True}}, True),
        ({"ForAllValues:StringEquals": {"many": ["a", "b", "c"]}}, True),
        ({"ForAllValues:StringEquals": {"many": ["a"]}}, False),
        ({"ForAnyValue:StringEquals": {"many": ["a"]}}, True),
        ({"ForAllValues:StringEquals": {"aws:PrincipalTag/none": ["a"]}}, True),
        ({"ForAnyValue:StringEquals": {"aws:PrincipalTag/none": ["a"]}}, False),
        ({"StringEquals": {"aws:SourceVpc": "vpc-1"}}, None),
        ({"StringEquals": {"aws:SourceVpc": "vpc-1", "number": "9"}}, False),
        ({"BinaryEquals": {"number": "1"}}, None),
    ],
)
def test_conditions_hold_as_iam_documents_them(condition: Any, holds: bool | None) -> None:
    values = {
        "aws:PrincipalTag/job": "iamuser-admin",
        "aws:SourceIp": "203.0.113.7",
        "aws:CurrentTime": "2026-11-23T20:00:00Z",
        "number": "8",
        "arn": f"arn:aws:iam::{ACCOUNT}:role/worker",
        "flag": "true",
        "many": ["a", "b"],
    }
    context = Context(values, frozenset({"aws:PrincipalTag/"}))
    assert hold(condition, context) is holds


def test_a_variable_in_a_resource_stands_for_the_callers_value() -> None:
    own = document(allow("s3:GetObject", "arn:aws:s3:::home/${aws:username}/*"))
    for name, allowed in (("anna", True), ("berta", False)):
        question = Question(
            "s3:GetObject",
            "arn:aws:s3:::home/anna/x",
            Context({"aws:username": name}),
        )
        assert (iam_policy.refusal(Policies((own,)), question) == "") is allowed


def test_the_table_of_resources_is_awss() -> None:
    """cfn-lint has a copy of the Service Authorization Reference."""
    package = find_spec("cfnlint")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent
    reference = json.loads((folder / "data" / "AdditionalSpecs" / "Policies.json").read_text())
    found = plain_yaml.read_plain(ROOT / "lab" / "access" / "resources.yaml")["services"]
    wrong: list[tuple[str, ...]] = []
    for service, described in found.items():
        for action, kinds in described["actions"].items():
            known = reference[service]["Actions"][action.lower()]
            if bool(known.get("Resources")) != bool(kinds):
                wrong.append((service, action, str(known)))
    for action, (named, made) in of_ec2.ACTIONS.items():
        known = reference["ec2"]["Actions"][action.lower()]["Resources"]
        wrong += [("ec2", action, kind) for kind in {*named, *made} - {*known}]
    for action in {*of_s3.BUCKETS.values(), *of_s3.OBJECTS.values()}:
        if action.lower() not in reference["s3"]["Actions"]:
            wrong.append(("s3", action))
    assert wrong == []


def test_every_call_that_a_documented_policy_narrows_is_judged_by_its_resources() -> None:
    described = plain_yaml.read_plain(ROOT / "lab" / "access" / "resources.yaml")["services"]
    known = {f"{name}:{call}" for name, fields in described.items() for call in fields["actions"]}
    known |= {f"ec2:{call}" for call in of_ec2.ACTIONS}
    known |= {f"s3:{call}" for call in (*of_s3.BUCKETS.values(), *of_s3.OBJECTS.values())}
    # Permissions that no call has the name of, and one that only EC2 asks for.
    known |= {"iam:PassRole", "kms:ReEncryptFrom", "kms:ReEncryptTo"}
    # Of CloudFormation and IAM, whose calls a stack needs, the lab describes no resources.
    documents = [
        json.loads(path.read_text())
        for path in (ROOT / "docs").glob("iam-*.json")
        if path.name != "iam-stack.json"
    ]
    narrowed = {
        action
        for document in documents
        for statement in document["Statement"]
        if statement["Resource"] != "*"
        for action in statement["Action"]
    }
    # The lab has no CodeBuild: it refuses these calls whoever makes them.
    narrowed = {action for action in narrowed if not action.startswith("codebuild:")}
    assert narrowed and narrowed <= known


def test_an_image_is_judged_by_its_owner() -> None:
    def share(image: str) -> Any:
        return lambda ec2: ec2.modify_image_attribute(
            ImageId=image,
            Attribute="launchPermission",
            OperationType="add",
            UserIds=["111122223333"],
        )

    own, amazons = OWNERS
    owned = {"Condition": {"StringEquals": {"ec2:Owner": "${aws:PrincipalAccount}"}}}
    may = allow("ec2:ModifyImageAttribute", "arn:aws:ec2:*::image/*", **owned)
    assert refused("ec2", share(own), may) == ""
    assert "ec2:ModifyImageAttribute" in refused("ec2", share(amazons), may)


def test_a_change_is_judged_by_the_attribute_that_it_sets() -> None:
    def tokens(wanted: str) -> Any:
        return lambda ec2: ec2.modify_instance_metadata_options(InstanceId=MINE, HttpTokens=wanted)

    required = {"Condition": {"StringEquals": {"ec2:Attribute/HttpTokens": "required"}}}
    may = allow("ec2:ModifyInstanceMetadataOptions", "arn:aws:ec2:*:*:instance/*", **required)
    assert refused("ec2", tokens("required"), may) == ""
    assert refused("ec2", tokens("optional"), may)
    described = {"Condition": {"Null": {"ec2:Attribute/Description": "false"}}}
    may = allow("ec2:ModifyImageAttribute", "arn:aws:ec2:*::image/*", **described)
    image = next(iter(OWNERS))
    assert not refused(
        "ec2",
        lambda ec2: ec2.modify_image_attribute(ImageId=image, Description={"Value": "mine"}),
        may,
    )
    assert refused(
        "ec2",
        lambda ec2: ec2.modify_image_attribute(
            ImageId=image, LaunchPermission={"Add": [{"UserId": "111122223333"}]}
        ),
        may,
    )


def test_a_key_pair_that_goes_by_its_name_is_judged_by_its_tags() -> None:
    tagged = {"Condition": {"StringEquals": {"aws:ResourceTag/team": "gpu"}}}
    may = allow("ec2:DeleteKeyPair", "*", **tagged)
    assert refused("ec2", lambda ec2: ec2.delete_key_pair(KeyName="bake"), may) == ""
    assert refused("ec2", lambda ec2: ec2.delete_key_pair(KeyName="mine"), may)


def test_a_request_names_its_call_in_each_protocol() -> None:
    credential = "AWS4-HMAC-SHA256 Credential=A/20261123/eu-west-1/{}/aws4_request, SignedHeaders=h"

    def named(signed: str, **environ: str) -> tuple[str, str, str]:
        given = {**environ, "HTTP_AUTHORIZATION": credential.format(signed)}
        call = questions.read(given, b"")
        return call.service, call.action, call.region

    messages = "EC2WindowsMessageDeliveryService.GetMessages"
    assert named("ssm", HTTP_X_AMZ_TARGET=messages) == ("ec2messages", "GetMessages", "eu-west-1")
    path = "/service/GraniteServiceVersion20100801/operation/ListMetrics"
    assert named("monitoring", PATH_INFO=path) == ("cloudwatch", "ListMetrics", "eu-west-1")
    query = "Action=DescribeRegions&Version=1"
    assert named("ec2", QUERY_STRING=query) == ("ec2", "DescribeRegions", "eu-west-1")


def test_what_is_seen_of_resources_that_exist() -> None:
    region = "eu-north-1"
    ec2 = ec2_backends[ACCOUNT][region]
    ec2.create_key_pair("bake", "ed25519", {"team": "gpu"})
    assert LOOK("key-pair", "bake", region).tags == {"team": "gpu"}
    assert LOOK("key-pair", "another", region) == Resource()
    public = next(iter(ec2.amis.values()))
    assert LOOK("image", public.id, region).owner == "amazon"
    volume = ec2.create_volume("1", f"{region}a")
    assert LOOK("snapshot", ec2.create_snapshot(volume.id, "s").id, region).owner == ACCOUNT
    ec2.delete_key_pair("bake")
