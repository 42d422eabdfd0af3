"""AWS::IAM and AWS::KMS."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from lab.cloudformation.errors import ResourceError
from lab.cloudformation.kinds.kind import Kind, Made, Place, Properties, words


def _role(place: Place, name: str, properties: Properties) -> Made:
    iam = place.client("iam")
    called = properties.get("RoleName") or place.new_name(name)
    boundary = properties.get("PermissionsBoundary")
    role = iam.create_role(
        RoleName=called,
        AssumeRolePolicyDocument=json.dumps(properties["AssumeRolePolicyDocument"]),
        Description=properties.get("Description", ""),
        Tags=place.all_tags(properties.get("Tags")),
        **({"PermissionsBoundary": boundary} if boundary else {}),
    )["Role"]
    attributes = {"Arn": role["Arn"], "RoleId": role["RoleId"], "policies": (), "attached": ()}
    return _with_policies(iam, Made(called, attributes), properties)


def _with_policies(iam: Any, made: Made, properties: Properties) -> Made:
    wanted = {
        policy["PolicyName"]: policy["PolicyDocument"] for policy in properties.get("Policies", [])
    }
    for old in made.attributes["policies"]:
        if old not in wanted:
            iam.delete_role_policy(RoleName=made.id, PolicyName=old)
    for name, document in wanted.items():
        text = json.dumps(document)
        iam.put_role_policy(RoleName=made.id, PolicyName=name, PolicyDocument=text)
    attached = tuple(properties.get("ManagedPolicyArns", ()))
    for arn in set(made.attributes["attached"]) - set(attached):
        iam.detach_role_policy(RoleName=made.id, PolicyArn=arn)
    for arn in attached:
        iam.attach_role_policy(RoleName=made.id, PolicyArn=arn)
    return Made(made.id, {**made.attributes, "policies": tuple(wanted), "attached": attached})


def _changed_role(place: Place, made: Made, properties: Properties) -> Made:
    iam = place.client("iam")
    if boundary := properties.get("PermissionsBoundary"):
        iam.put_role_permissions_boundary(RoleName=made.id, PermissionsBoundary=boundary)
    else:
        iam.delete_role_permissions_boundary(RoleName=made.id)
    iam.update_assume_role_policy(
        RoleName=made.id, PolicyDocument=json.dumps(properties["AssumeRolePolicyDocument"])
    )
    return _with_policies(iam, made, properties)


def _without_role(place: Place, made: Made) -> None:
    iam = place.client("iam")
    with contextlib.suppress(iam.exceptions.NoSuchEntityException):
        for name in made.attributes["policies"]:
            iam.delete_role_policy(RoleName=made.id, PolicyName=name)
        for arn in made.attributes["attached"]:
            iam.detach_role_policy(RoleName=made.id, PolicyArn=arn)
        iam.delete_role(RoleName=made.id)


def _policy(place: Place, name: str, properties: Properties) -> Made:
    made = Made(
        place.new_name(name), {"roles": properties["Roles"], "name": properties["PolicyName"]}
    )
    for role in properties["Roles"]:
        place.client("iam").put_role_policy(
            RoleName=role,
            PolicyName=properties["PolicyName"],
            PolicyDocument=json.dumps(properties["PolicyDocument"]),
        )
    return made


def _without_policy(place: Place, made: Made) -> None:
    iam = place.client("iam")
    for role in made.attributes["roles"]:
        with contextlib.suppress(iam.exceptions.NoSuchEntityException):
            iam.delete_role_policy(RoleName=role, PolicyName=made.attributes["name"])


# Characters without white space.
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
_LONGEST = 6144


def _managed(place: Place, name: str, properties: Properties) -> Made:
    made = place.client("iam").create_policy(
        PolicyName=properties.get("ManagedPolicyName") or place.new_name(name),
        PolicyDocument=_short_enough(properties["PolicyDocument"]),
        Description=properties.get("Description", ""),
        Tags=place.all_tags(),
    )["Policy"]
    return Made(made["Arn"], {"PolicyArn": made["Arn"], "PolicyId": made["PolicyId"]})


def _short_enough(document: Any) -> str:
    text = json.dumps(document, separators=(",", ":"))
    if len("".join(text.split())) > _LONGEST:
        raise ResourceError("Cannot exceed quota for PolicySize: 6144")
    return text


def _changed_managed(place: Place, made: Made, properties: Properties) -> Made:
    iam = place.client("iam")
    document = _short_enough(properties["PolicyDocument"])
    (before,) = [
        version["VersionId"]
        for version in iam.list_policy_versions(PolicyArn=made.id)["Versions"]
        if version["IsDefaultVersion"]
    ]
    iam.create_policy_version(PolicyArn=made.id, PolicyDocument=document, SetAsDefault=True)
    iam.delete_policy_version(PolicyArn=made.id, VersionId=before)
    return made


def _without_managed(place: Place, made: Made) -> None:
    iam = place.client("iam")
    with contextlib.suppress(iam.exceptions.NoSuchEntityException):
        iam.delete_policy(PolicyArn=made.id)


def _profile(place: Place, name: str, properties: Properties) -> Made:
    iam = place.client("iam")
    called = properties.get("InstanceProfileName") or place.new_name(name)
    profile = iam.create_instance_profile(InstanceProfileName=called)["InstanceProfile"]
    for role in properties["Roles"]:
        iam.add_role_to_instance_profile(InstanceProfileName=called, RoleName=role)
    return Made(called, {"Arn": profile["Arn"], "roles": properties["Roles"]})


def _without_profile(place: Place, made: Made) -> None:
    iam = place.client("iam")
    with contextlib.suppress(iam.exceptions.NoSuchEntityException):
        for role in made.attributes["roles"]:
            iam.remove_role_from_instance_profile(InstanceProfileName=made.id, RoleName=role)
        iam.delete_instance_profile(InstanceProfileName=made.id)


def _key(place: Place, name: str, properties: Properties) -> Made:
    kms = place.client("kms")
    key = kms.create_key(
        Policy=json.dumps(properties["KeyPolicy"]),
        Description=properties.get("Description", ""),
        Tags=[
            {"TagKey": tag["Key"], "TagValue": tag["Value"]}
            for tag in place.all_tags(properties.get("Tags"))
        ],
    )["KeyMetadata"]
    if properties.get("EnableKeyRotation"):
        kms.enable_key_rotation(KeyId=key["KeyId"])
    days = int(properties.get("PendingWindowInDays", 30))
    return Made(key["KeyId"], {"Arn": key["Arn"], "KeyId": key["KeyId"], "days": days})


def _changed_key(place: Place, made: Made, properties: Properties) -> Made:
    kms = place.client("kms")
    document = json.dumps(properties["KeyPolicy"])
    kms.put_key_policy(KeyId=made.id, PolicyName="default", Policy=document)
    return made


def _without_key(place: Place, made: Made) -> None:
    place.client("kms").schedule_key_deletion(
        KeyId=made.id, PendingWindowInDays=made.attributes["days"]
    )


KINDS = {
    "AWS::IAM::Role": Kind(
        _role,
        _without_role,
        words("RoleName Description AssumeRolePolicyDocument PermissionsBoundary Policies")
        | words("ManagedPolicyArns"),
        _changed_role,
        words("RoleName Description"),
    ),
    "AWS::IAM::Policy": Kind(_policy, _without_policy, words("PolicyName PolicyDocument Roles")),
    "AWS::IAM::ManagedPolicy": Kind(
        _managed,
        _without_managed,
        words("ManagedPolicyName Description PolicyDocument"),
        _changed_managed,
        words("ManagedPolicyName Description"),
    ),
    "AWS::IAM::InstanceProfile": Kind(
        _profile, _without_profile, words("InstanceProfileName Roles")
    ),
    "AWS::KMS::Key": Kind(
        _key,
        _without_key,
        words("Description EnableKeyRotation PendingWindowInDays KeyPolicy Tags"),
        _changed_key,
    ),
}
