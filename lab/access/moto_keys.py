"""Keys that moto made: of IAM users (CreateAccessKey) and of assumed roles (AssumeRole, and the
roles of instance profiles, see `role_sessions`)."""

from __future__ import annotations

from datetime import timezone

from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

from lab.access.keys import Key


def find(key_id: str) -> Key | None:
    """The active key of an IAM user, or that of a role that somebody assumed; None for others.

    An expired key of a role is returned too: the answer names the expiry.
    """
    for iam in iam_backends[DEFAULT_ACCOUNT_ID].values():
        for user in iam.users.values():
            for key in user.access_keys:
                # IAM's other status is Inactive: such a key is refused as an unknown one is.
                if key.access_key_id == key_id and key.status == "Active":
                    return Key(key_id, key.secret_access_key, f"user {user.name}")
    for sts in sts_backends[DEFAULT_ACCOUNT_ID].values():
        for role in sts.assumed_roles:
            if role.access_key_id == key_id:
                return Key(
                    key_id,
                    role.secret_access_key,
                    f"role {role.role_arn}",
                    token=role.session_token,
                    expires=role.expiration.replace(tzinfo=timezone.utc).timestamp(),
                )
    return None
