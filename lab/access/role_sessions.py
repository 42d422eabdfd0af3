"""Sessions of instances' roles: an instance has the keys of one for the role of its profile.

moto's STS opens them, so the lab's API knows their keys as that role (`moto_keys`) until they
expire; IMDS hands them out (lab/metadata/role_credentials.py).
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import Any

from moto.sts.models import sts_backends

from lab.guests.instances import LabInstance

# Seen in published answers: six hours and a few minutes. AWS promises new ones "at least five
# minutes before the expiration of the old credentials"; SDKs ask again 15 minutes before.
LIFETIME = timedelta(hours=6)
RENEWED_BEFORE = timedelta(hours=1)

# By instance and role: moto's session.
_sessions: dict[tuple[str, str], Any] = {}
_lock = threading.Lock()


def of(instance: LabInstance, role: Any, now: datetime) -> Any:
    """The session of an instance's role, opened anew RENEWED_BEFORE its expiry."""
    with _lock:
        session = _sessions.get((instance.id, role.arn))
        if session is None or expires(session) - now < RENEWED_BEFORE:
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
                kept for kept in backend.assumed_roles if expires(kept) > now - LIFETIME
            ]
            _sessions[instance.id, role.arn] = session
        return session


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


def expires(session: Any) -> datetime:
    """When a session's keys expire."""
    return session.expiration.replace(tzinfo=timezone.utc)  # type: ignore[no-any-return]


def updated(session: Any) -> datetime:
    """When a session was opened."""
    return expires(session) - LIFETIME
