"""Whose a key is that moto made, and which policies decide about it.

A user has its own policies and those of its groups, a role's session those of the role (now, not
when the session began). A permissions boundary and the session's own policy limit them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

from lab.access import resource_policies, role_sessions
from lab.access.iam_policy import Policies
from lab.access.of_ec2 import Resource, arn
from lab.access.principals import Caller


def find(key_id: str) -> tuple[Caller, Policies] | None:
    """Whose a key is and what decides about it; None for a key that moto does not know."""
    for sts in sts_backends[DEFAULT_ACCOUNT_ID].values():
        for session in sts.assumed_roles:
            if session.access_key_id == key_id:
                return _session(session)
    for iam in iam_backends[DEFAULT_ACCOUNT_ID].values():
        for user in iam.users.values():
            if any(key.access_key_id == key_id for key in user.access_keys):
                groups = [group for group in iam.groups.values() if user in group.users]
                return _user(user), Policies(tuple(_documents([user, *groups])))
    return None


def look(kind: str, name: str, region: str) -> Resource:
    """What conditions see of a resource; see `of_ec2.Look` for its name."""
    ec2 = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    if kind == "key":
        return Resource(id=resource_policies.key_id(name, region))
    if kind in ("instance-profile", "launch-template-version"):
        profile = name if kind == "instance-profile" else _profile_of(ec2, *name.rsplit("/", 1))
        return Resource(roles=_roles_of(profile))
    tagged = getattr(ec2.key_pairs.get(name), "id", name) if kind == "key-pair" else name
    kinds = {"image": ec2.amis, "snapshot": ec2.snapshots}
    owned = kinds[kind].get(name) if kind in kinds else None
    owner = (getattr(owned, "owner_alias", None) or owned.owner_id) if owned else None
    return Resource(dict(ec2.tags.get(tagged, {})), owner)


def _profile_of(ec2: Any, template: str, version: str) -> str:
    """The name of the instance profile in a launch template's version; "" for none."""
    launch_template = ec2.launch_templates.get(
        ec2.launch_template_name_to_ids.get(template, template)
    )
    try:
        data = launch_template.get_version(version).data if launch_template else {}
    except (EC2ClientError, ValueError):
        return ""  # the launch itself says that there is no such version
    profile = data.get("IamInstanceProfile") or {}
    return str(profile.get("Name") or profile.get("Arn", "").rpartition("/")[2])


def _roles_of(profile: str) -> tuple[str, ...]:
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    roles = [
        each_profile
        for each_profile in iam.instance_profiles.values()
        if each_profile.name == profile
    ]
    return tuple(role.arn for item in roles for role in item.roles)


def _session(session: Any) -> tuple[Caller, Policies]:
    account = session.role_arn.split(":")[4]
    iam = iam_backends[account][session.partition]
    role = next((role for role in iam.roles.values() if role.arn == session.role_arn), None)
    held = role_sessions.instance_of(session.access_key_id)
    instance = held[0] if held else None
    caller = Caller(
        arn=session.arn,
        principal=session.role_arn,
        kind="AssumedRole",
        user_id=session.user_id,
        account=account,
        tags=_tags(role),
        instance=arn("instance", instance.id, instance.region_name, account) if instance else "",
        address=str(instance.address) if instance else "",
    )
    boundary = getattr(role, "permissions_boundary_arn", None)
    limit = _text(iam.managed_policies.get(boundary)) if boundary else None
    if role is None:
        return caller, Policies(())
    return caller, Policies(tuple(_documents([role])), limit, _plain(session.policy))


def _user(user: Any) -> Caller:
    return Caller(user.arn, user.arn, "User", user.id, user.account_id, user.name, _tags(user))


def _documents(holders: Iterable[Any]) -> Iterator[str]:
    for holder in holders:
        for text in holder.policies.values():
            yield _plain(text) or _NOTHING
        for policy in holder.managed_policies.values():
            yield _text(policy)


_NOTHING = json.dumps({"Statement": []})


def _text(policy: Any) -> str:
    """The document in force of a managed policy; one that is gone allows nothing."""
    for version in policy.versions if policy else ():
        if version.version_id == policy.default_version_id:
            return _plain(version.document) or _NOTHING
    return _NOTHING


def _plain(document: Any) -> str | None:
    return document if isinstance(document, str) or not document else json.dumps(document)


def _tags(holder: Any) -> tuple[tuple[str, str], ...]:
    listed = getattr(holder, "tags", None) or []
    rows = listed.values() if isinstance(listed, dict) else listed
    return tuple((row["Key"], row["Value"]) for row in rows)
