"""Credentials of an instance's role, as IMDS hands them out below `iam/`.

They are those of a session that moto's STS opens for the role of the instance's profile, so the
lab's API knows them as that role (lab/api/moto_keys.py) until they expire.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/iam-roles-for-amazon-ec2.html
"""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta, timezone
from typing import Any

from moto.sts.models import sts_backends

from lab.access import policy
from lab.guests.instances import LabInstance

# Seen in published answers: six hours and a few minutes. AWS promises new ones "at least five
# minutes before the expiration of the old credentials"; SDKs ask again 15 minutes before.
LIFETIME = timedelta(hours=6)
RENEWED_BEFORE = timedelta(hours=1)
_FORMAT = "%Y-%m-%dT%H:%M:%SZ"

# By instance and role: moto's session.
_sessions: dict[tuple[str, str], Any] = {}
_lock = threading.Lock()


def of(instance: LabInstance, now: datetime | None = None) -> dict[str, Any]:
    """What an instance sees below `iam`: nothing without a profile, no credentials without a role.

    A role has the same credentials until RENEWED_BEFORE their expiry.
    """
    association = instance.ec2_backend.iam_instance_profile_associations.get(instance.id)
    if association is None:
        return {}
    profile = association.iam_instance_profile
    if not profile.roles:
        return {"iam": {"info": _json(_info(profile, now or _now()))}}
    role = profile.roles[0]
    if not policy.service_may_assume(_trust(role), "ec2.amazonaws.com"):
        refused = _json(_refused(role, now or _now()))
        info = _json(_info(profile, now or _now()))
        return {"iam": {"info": info, "security-credentials": {role.name: refused}}}
    session = _session(instance, role, now or _now())
    return {
        "iam": {
            "info": _json(_info(profile, _updated(session))),
            "security-credentials": {role.name: _json(_document(session))},
        }
    }


def instance_of(key_id: str) -> tuple[LabInstance, str] | None:
    """The instance that a key was given to, and its role's name; None for another key."""
    with _lock:
        holders = [
            (place, session)
            for place, session in _sessions.items()
            if session.access_key_id == key_id
        ]
    for (instance_id, role), _ in holders:
        for instance in list(LabInstance.machines.by_address.values()):
            if instance.id == instance_id:
                return instance, role.rpartition("/")[2]
    return None


def _trust(role: Any) -> str:
    document = role.assume_role_policy_document
    return document if isinstance(document, str) else json.dumps(document)


def _refused(role: Any, now: datetime) -> dict[str, str]:
    """What IMDS says of a role whose trust policy leaves EC2 out, as seen in
    https://github.com/aws/aws-cli/issues/2060 and described in
    https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_iam-ec2.html"""
    return {
        "Code": "AssumeRoleUnauthorizedAccess",
        "Message": f"EC2 cannot assume the role {role.name}.  Please see documentation at "
        "https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_iam-ec2.html.",
        "LastUpdated": now.strftime(_FORMAT),
    }


def _session(instance: LabInstance, role: Any, now: datetime) -> Any:
    with _lock:
        session = _sessions.get((instance.id, role.arn))
        if session is None or _expires(session) - now < RENEWED_BEFORE:
            backend = sts_backends[instance.owner_id][instance.ec2_backend.partition]
            session = backend.assume_role(
                region_name=instance.region_name,
                role_session_name=instance.id,
                role_arn=role.arn,
                policy="",
                duration=int(LIFETIME.total_seconds()),
                external_id="",
            )
            session.expiration = (now + LIFETIME).replace(tzinfo=None)
            # Nobody can use a session that is over; moto keeps them for ever.
            backend.assumed_roles[:] = [
                kept for kept in backend.assumed_roles if _expires(kept) > now - LIFETIME
            ]
            _sessions[instance.id, role.arn] = session
        return session


def _document(session: Any) -> dict[str, str]:
    return {
        "Code": "Success",
        "LastUpdated": _updated(session).strftime(_FORMAT),
        "Type": "AWS-HMAC",
        "AccessKeyId": session.access_key_id,
        "SecretAccessKey": session.secret_access_key,
        "Token": session.session_token,
        "Expiration": _expires(session).strftime(_FORMAT),
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


def _expires(session: Any) -> datetime:
    return session.expiration.replace(tzinfo=timezone.utc)  # type: ignore[no-any-return]


def _updated(session: Any) -> datetime:
    return _expires(session) - LIFETIME


def _now() -> datetime:
    return datetime.now(timezone.utc)
