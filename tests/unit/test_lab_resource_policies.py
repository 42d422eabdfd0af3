"""Policies of resources in the lab: buckets, topics, keys, roles' trust; and roles that are passed.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic_policy-eval-denyallow.html
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends
from moto.kms.models import kms_backends
from moto.s3.models import s3_backends
from moto.sns.models import sns_backends
from moto.sqs.models import sqs_backends

from lab.access import iam_policy, resource_policies
from lab.access.iam_policy import Attached
from lab.access.of_ec2 import Resource
from lab.access.principals import Caller
from tests.unit import test_lab_access
from tests.unit.test_lab_access import ACCOUNT, LOOK, ROLE, allow, deny, document, get, refused
from tests.unit.test_lab_auth import Call

BUCKET = "arn:aws:s3:::b-1/*"
ROOT = {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}
WORKER = {"AWS": f"arn:aws:iam::{ACCOUNT}:role/worker"}
SESSION = {"AWS": ROLE.arn}
SOMEBODY = {"AWS": f"arn:aws:iam::{ACCOUNT}:role/somebody"}
OTHER = f"arn:aws:iam::{ACCOUNT}:role/other"
NOTHING = document()


def on_bucket(principal: Any, effect: str = "Allow", **more: Any) -> Attached:
    statement = allow("s3:GetObject", BUCKET, Principal=principal, **more)
    return Attached(document({**statement, "Effect": effect}))


def trust(*principals: Any, **more: Any) -> Attached:
    """A trust policy. Its statements have no resource."""
    statements = [
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal, **more}
        for principal in principals
    ]
    return Attached(document(*statements), alone=True)


# Whom the bucket's policy names → whether a role without policies, a role with a boundary, and a
# session with a policy that allow nothing may read.
@pytest.mark.parametrize(
    ("principal", "alone", "limited"),
    [
        (SESSION, True, True),
        (WORKER, True, False),
        ("*", True, False),
        ({"AWS": "*"}, True, False),
        ({"AWS": [SOMEBODY["AWS"], WORKER["AWS"]]}, True, False),
        (ROOT, False, False),
        ({"AWS": ACCOUNT}, False, False),
        (SOMEBODY, False, False),
        ({"Service": "ec2.amazonaws.com"}, False, False),
    ],
)
def test_a_buckets_policy_allows_whom_it_names(principal: Any, alone: bool, limited: bool) -> None:
    given = on_bucket(principal)
    assert (refused("s3", get("x"), attached=given) == "") is alone
    assert (refused("s3", get("x"), attached=given, boundary=NOTHING) == "") is limited
    assert (refused("s3", get("x"), attached=given, session=NOTHING) == "") is limited


def test_a_bucket_that_is_left_to_the_account_needs_the_roles_policy_too() -> None:
    may = allow("s3:GetObject", BUCKET)
    assert refused("s3", get("x"), may, attached=on_bucket(ROOT)) == ""
    assert "no identity-based policy allows" in refused("s3", get("x"), attached=on_bucket(ROOT))


@pytest.mark.parametrize("principal", [ROOT, WORKER, SESSION, "*"])
def test_a_deny_of_the_buckets_policy_wins(principal: Any) -> None:
    text = refused("s3", get("x"), allow("s3:*"), attached=on_bucket(principal, "Deny"))
    assert "with an explicit deny in a resource-based policy" in text
    others = on_bucket(SOMEBODY, "Deny")
    assert refused("s3", get("x"), allow("s3:*"), attached=others) == ""


def test_a_bucket_only_for_one_role_is_denied_to_all_others() -> None:
    statement = {**deny("s3:*", BUCKET), "NotPrincipal": WORKER}
    only = Attached(document(statement))
    assert refused("s3", get("x"), allow("s3:*"), attached=only) == ""
    stranger = dataclasses.replace(ROLE, principal=OTHER)
    assert "explicit deny" in refused("s3", get("x"), allow("s3:*"), attached=only, caller=stranger)


def test_a_bucket_only_for_encrypted_connections_is_open_as_aws_is_asked_by_tls() -> None:
    """What deploy.codebuild's bucket has."""
    plain = {"Bool": {"aws:SecureTransport": "false"}}
    given = on_bucket("*", "Deny", Condition=plain)
    assert refused("s3", get("x"), allow("s3:*"), attached=given) == ""
    encrypted = on_bucket("*", "Deny", Condition={"Bool": {"aws:SecureTransport": "true"}})
    assert "explicit deny" in refused("s3", get("x"), allow("s3:*"), attached=encrypted)


def assume(**more: Any) -> Call:
    return lambda sts: sts.assume_role(RoleArn=OTHER, RoleSessionName="mine", **more)


def test_a_role_is_assumed_by_whom_it_trusts() -> None:
    may = allow("sts:AssumeRole", OTHER)
    assert refused("sts", assume(), attached=trust(WORKER)) == ""
    assert refused("sts", assume(), may, attached=trust(ROOT)) == ""
    assert "no identity-based policy" in refused("sts", assume(), attached=trust(ROOT))
    for nobody in (trust(), trust(SOMEBODY), trust({"Service": "ec2.amazonaws.com"})):
        text = refused("sts", assume(), may, attached=nobody)
        assert "<Code>AccessDenied</Code>" in text
        assert f"is not authorized to perform: sts:AssumeRole on resource: {OTHER}" in text
        assert "because no resource-based policy allows" in text


def test_a_role_of_another_account_needs_both_sides() -> None:
    theirs = "arn:aws:iam::111122223333:role/theirs"

    def call(sts: Any) -> Any:
        return sts.assume_role(RoleArn=theirs, RoleSessionName="mine")

    may = allow("sts:AssumeRole", theirs)
    assert refused("sts", call, may, attached=trust(WORKER)) == ""
    assert "no identity-based policy" in refused("sts", call, attached=trust(WORKER))
    assert "no resource-based policy" in refused("sts", call, may, attached=trust())


def test_a_role_for_partners_asks_for_their_external_id() -> None:
    wanted = {"StringEquals": {"sts:ExternalId": "kiln-1"}}
    partners = trust(WORKER, Condition=wanted)
    assert refused("sts", assume(ExternalId="kiln-1"), attached=partners) == ""
    assert refused("sts", assume(ExternalId="kiln-2"), attached=partners)
    assert refused("sts", assume(), attached=partners)


def test_a_key_is_used_by_whom_its_policy_lets() -> None:
    def sign(kms: Any) -> Any:
        return kms.sign(
            KeyId="1234abcd-12ab-34cd-56ef-1234567890ab",
            Message=b"m",
            SigningAlgorithm="ECDSA_SHA_256",
        )

    may = allow("kms:Sign", f"arn:aws:kms:us-east-1:{ACCOUNT}:key/1234abcd-*")
    account = Attached(document(allow("kms:*", Principal=ROOT)), alone=True)
    somebody = Attached(document(allow("kms:*", Principal=SOMEBODY)), alone=True)
    assert refused("kms", sign, may, attached=account) == ""
    assert "no identity-based policy" in refused("kms", sign, attached=account)
    assert "no resource-based policy" in refused("kms", sign, may, attached=somebody)


def launched(**more: Any) -> Call:
    return lambda ec2: ec2.run_instances(
        ImageId="ami-0123456789abcdef0", MinCount=1, MaxCount=1, **more
    )


BY_NAME = {"IamInstanceProfile": {"Name": "gpu"}}
BY_ARN = {"IamInstanceProfile": {"Arn": f"arn:aws:iam::{ACCOUNT}:instance-profile/team/gpu"}}
BY_TEMPLATE = {"LaunchTemplate": {"LaunchTemplateName": "fleet", "Version": "2"}}


@pytest.mark.parametrize("given", [BY_NAME, BY_ARN, BY_TEMPLATE], ids=["name", "arn", "template"])
def test_a_launch_with_a_role_needs_the_permission_to_pass_it(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    known = {("instance-profile", "gpu"), ("launch-template-version", "fleet/2")}
    monkeypatch.setattr(
        test_lab_access,
        "look",
        lambda kind, name, region: Resource(roles=(OTHER,) if (kind, name) in known else ()),
    )
    ec2 = allow("ec2:*")
    text = refused("ec2", launched(**given), ec2)
    # As in https://github.com/aws/karpenter-provider-aws/issues/6298
    assert "<Code>UnauthorizedOperation</Code>" in text
    assert f"is not authorized to perform: iam:PassRole on resource: {OTHER} because no" in text
    to_ec2 = {"Condition": {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}}
    assert refused("ec2", launched(**given), ec2, allow("iam:PassRole", OTHER, **to_ec2)) == ""
    to_ecs = {"Condition": {"StringEquals": {"iam:PassedToService": "ecs.amazonaws.com"}}}
    assert refused("ec2", launched(**given), ec2, allow("iam:PassRole", OTHER, **to_ecs))
    assert refused("ec2", launched(), ec2) == ""


def test_a_role_is_passed_to_an_instance_that_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_lab_access, "look", lambda *_: Resource(roles=(OTHER,)))
    profile: Any = {"IamInstanceProfile": {"Name": "gpu"}}
    for call in (
        lambda ec2: ec2.associate_iam_instance_profile(InstanceId="i-0123456789abcdef0", **profile),
        lambda ec2: ec2.replace_iam_instance_profile_association(
            AssociationId="iip-assoc-0123456789abcdef0", **profile
        ),
    ):
        assert "iam:PassRole" in refused("ec2", call, allow("ec2:*"))
        assert refused("ec2", call, allow("ec2:*"), allow("iam:PassRole")) == ""


def test_an_id_in_a_tag_is_not_what_a_call_changes() -> None:
    """A bake tags its AMI with the id of the parent AMI, which is Amazon's."""
    own, amazons = test_lab_access.OWNERS
    owned = {"Condition": {"StringEquals": {"ec2:Owner": "${aws:PrincipalAccount}"}}}
    may = allow("ec2:CreateTags", "arn:aws:ec2:*::image/*", **owned)

    def tag(image: str) -> Call:
        tags = [{"Key": "kiln:parent-ami", "Value": amazons}]
        return lambda ec2: ec2.create_tags(Resources=[image], Tags=tags)

    assert refused("ec2", tag(own), may) == ""
    assert refused("ec2", tag(amazons), may)


def test_policies_are_those_that_the_services_keep() -> None:
    region, text = "eu-west-2", document(allow("*", Principal="*"))
    # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html
    topic = sns_backends[ACCOUNT][region].create_topic("t")
    default = resource_policies.find("sns:Publish", topic.arn)
    assert default and "SourceOwner" in default.document
    queue = sqs_backends[ACCOUNT][region].create_queue("q", {})
    assert resource_policies.find("sqs:SendMessage", queue.queue_arn) is None
    queue.policy = text
    assert resource_policies.find("sqs:SendMessage", queue.queue_arn) == Attached(text)
    s3 = s3_backends[ACCOUNT]["aws"]
    s3.create_bucket("kept-here", region)
    assert resource_policies.find("s3:GetObject", "arn:aws:s3:::kept-here/x") is None
    s3.put_bucket_policy("kept-here", text.encode())
    assert resource_policies.find("s3:GetObject", "arn:aws:s3:::kept-here/x") == Attached(text)
    key = kms_backends[ACCOUNT][region].create_key(None, "SIGN_VERIFY", "ECC_NIST_P256", "", {})
    found = resource_policies.find("kms:Sign", key.arn)
    assert found and found.alone and f"{ACCOUNT}:root" in found.document
    kms_backends[ACCOUNT][region].create_alias(key.id, "alias/sign")
    names = (key.id, "alias/sign", f"arn:aws:kms:{region}:{ACCOUNT}:alias/sign")
    assert {LOOK("key", name, region).id for name in names} == {key.id}
    assert LOOK("key", key.arn, region).id == key.arn


def test_a_topics_own_policy_lets_no_role_publish() -> None:
    topic = sns_backends[ACCOUNT]["us-east-1"].create_topic("alarms")
    default = resource_policies.find("sns:Publish", topic.arn)
    call: Call = lambda sns: sns.publish(TopicArn=topic.arn, Message="m")  # noqa: E731
    assert "no identity-based policy" in refused("sns", call, attached=default)
    assert refused("sns", call, allow("sns:Publish", topic.arn), attached=default) == ""


def test_the_roles_of_a_launch_are_those_of_its_profile() -> None:
    iam, ec2 = iam_backends[ACCOUNT]["aws"], ec2_backends[ACCOUNT]["eu-west-2"]
    trusted = json.dumps({"Version": "2012-10-17", "Statement": []})
    role = iam.create_role("passed", trusted, "/", None, "", [], 3600)
    iam.create_instance_profile("with-a-role", "/", ["passed"], [])
    ec2.create_launch_template("of-a-fleet", "", {}, {})
    template = ec2.get_launch_template_by_name("of-a-fleet")
    template.create_version({"IamInstanceProfile": {"Name": "with-a-role"}}, "")
    assert LOOK("instance-profile", "with-a-role", "eu-west-2").roles == (role.arn,)
    for name in (f"{template.id}/2", "of-a-fleet/2", "of-a-fleet/$Latest"):
        assert LOOK("launch-template-version", name, "eu-west-2").roles == (role.arn,)
    for name in ("of-a-fleet/$Default", "of-a-fleet/9", "another/1"):
        assert LOOK("launch-template-version", name, "eu-west-2").roles == ()
    assert resource_policies.find("sts:AssumeRole", role.arn) == Attached(trusted, alone=True)
    gone = resource_policies.find("sts:AssumeRole", f"arn:aws:iam::{ACCOUNT}:role/gone")
    assert gone and gone.alone
    assert resource_policies.find("iam:PassRole", role.arn) is None


@pytest.mark.parametrize(
    ("statement", "may"),
    [
        ({"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}}, True),
        ({"Effect": "Allow", "Principal": {"Service": ["ecs.amazonaws.com"]}}, False),
        ({"Effect": "Allow", "Principal": ROOT}, False),
        ({"Effect": "Deny", "Principal": {"Service": "ec2.amazonaws.com"}}, False),
    ],
)
def test_ec2_takes_a_role_that_trusts_it(statement: dict[str, Any], may: bool) -> None:
    whole = document({**statement, "Action": "sts:AssumeRole"})
    assert iam_policy.service_may_assume(whole, "ec2.amazonaws.com") is may


def test_a_user_that_a_policy_names_needs_no_policy_of_its_own() -> None:
    arn = f"arn:aws:iam::{ACCOUNT}:user/anna"
    anna = Caller(arn, arn, "User", "AIDAEXAMPLE", ACCOUNT, "anna")
    given = on_bucket({"AWS": arn})
    assert refused("s3", get("x"), attached=given, caller=anna, boundary=NOTHING) == ""
