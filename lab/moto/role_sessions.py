"""Sessions of roles: their tokens count until they expire.

moto's STS opens them: for AssumeRole, and here for the role of an instance's profile, whose
credentials IMDS hands out (lab/moto/role_credentials.py).
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.sts.models import sts_backends

from lab.api import session_token
from lab.moto.instances import LabInstance

# Seen in published answers: six hours and a few minutes. AWS promises new ones "at least five
# minutes before the expiration of the old credentials"; SDKs ask again 15 minutes before.
LIFETIME = timedelta(hours=6)
RENEWED_BEFORE = timedelta(hours=1)

# By instance and role: moto's session.
_sessions: dict[tuple[str, str], Any] = {}
_lock = threading.Lock()


def current(instance: LabInstance, role: Any, now: datetime) -> Any:
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


def is_valid(token: str, now: datetime | None = None) -> bool:
    """Return True if a token is that of a role's session that has not expired."""
    now = now or datetime.now(timezone.utc)
    return any(
        session_token.is_same(session.session_token, token) and now < expires(session)
        for backend in sts_backends[DEFAULT_ACCOUNT_ID].values()
        for session in list(backend.assumed_roles)
    )


def instance_of(token: str) -> str | None:
    """The id of the instance that a token was given to; None for another token."""
    with _lock:
        holders = {
            instance_id
            for (instance_id, _), session in _sessions.items()
            if session_token.is_same(session.session_token, token)
        }
    there = list(LabInstance.machines.by_address.values())
    return next((instance.id for instance in there if instance.id in holders), None)


def expires(session: Any) -> datetime:
    """Return the time when a session's keys expire."""
    return session.expiration.replace(tzinfo=timezone.utc)  # type: ignore[no-any-return]


def updated(session: Any) -> datetime:
    """Return the time when a session was opened."""
    return expires(session) - LIFETIME
