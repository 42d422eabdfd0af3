"""Credentials of an instance's role, as IMDS hands them out below `iam/`.

They are those of a session that `lab.moto.role_sessions` keeps for the role of the instance's
profile.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/iam-roles-for-amazon-ec2.html
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from lab.moto import role_sessions
from lab.moto.instances import LabInstance

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def answers(instance: LabInstance, now: datetime | None = None) -> dict[str, Any]:
    """Return the answers below `iam` for an instance: nothing without a profile, no credentials
    without a role.

    A role has the same credentials until `role_sessions.RENEWED_BEFORE` their expiry.
    """
    association = instance.ec2_backend.iam_instance_profile_associations.get(instance.id)
    if association is None:
        return {}
    profile = association.iam_instance_profile
    if not profile.roles:
        return {"iam": {"info": _json(_info(profile, now or _now()))}}
    role = profile.roles[0]
    if not _trusts_ec2(role):
        refused = _json(_refused(role, now or _now()))
        info = _json(_info(profile, now or _now()))
        return {"iam": {"info": info, "security-credentials": {role.name: refused}}}
    session = role_sessions.current(instance, role, now or _now())
    return {
        "iam": {
            "info": _json(_info(profile, role_sessions.updated(session))),
            "security-credentials": {role.name: _json(_document(session))},
        }
    }


def _trusts_ec2(role: Any) -> bool:
    """Return True if a statement of the trust policy names EC2; conditions are not looked at."""
    document = role.assume_role_policy_document
    document = json.loads(document) if isinstance(document, str) else document
    statements = document["Statement"]
    named: list[str] = []
    for statement in statements if isinstance(statements, list) else [statements]:
        principal = statement.get("Principal")
        services = principal.get("Service", []) if isinstance(principal, dict) else []
        if statement.get("Effect") == "Allow":
            named += [services] if isinstance(services, str) else services
    return "ec2.amazonaws.com" in named


def _refused(role: Any, now: datetime) -> dict[str, str]:
    """Return IMDS's answer for a role whose trust policy leaves EC2 out, as seen in
    https://github.com/aws/aws-cli/issues/2060 and described in
    https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_iam-ec2.html"""
    return {
        "Code": "AssumeRoleUnauthorizedAccess",
        "Message": f"EC2 cannot assume the role {role.name}.  Please see documentation at "
        "https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_iam-ec2.html.",
        "LastUpdated": now.strftime(_FORMAT),
    }


def _document(session: Any) -> dict[str, str]:
    return {
        "Code": "Success",
        "LastUpdated": role_sessions.updated(session).strftime(_FORMAT),
        "Type": "AWS-HMAC",
        "AccessKeyId": session.access_key_id,
        "SecretAccessKey": session.secret_access_key,
        "Token": session.session_token,
        "Expiration": role_sessions.expires(session).strftime(_FORMAT),
    }


def _info(profile: Any, updated: datetime) -> dict[str, str]:
    return {
        "Code": "Success",
        "LastUpdated": updated.strftime(_FORMAT),
        "InstanceProfileArn": profile.arn,
        "InstanceProfileId": profile.id,
    }


def _json(content: dict[str, str]) -> str:
    return json.dumps(content, indent=2, separators=(",", " : "))


def _now() -> datetime:
    return datetime.now(timezone.utc)
