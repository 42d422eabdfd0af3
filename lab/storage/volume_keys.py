"""The KMS keys that volumes are encrypted with."""

from __future__ import annotations

from typing import Any


def arn_of(backend: Any, key: str) -> str | None:
    """The ARN, with which volumes and snapshots are shown, of a key that a call names by id, ARN,
    alias or the alias's ARN. None if the account has no such key in the backend's region."""
    from moto.kms import kms_backends

    keys = kms_backends[backend.account_id][backend.region_name]
    try:
        return str(keys.describe_key(key).arn)
    except (KeyError, AttributeError):  # moto's, for an id and for an alias
        return None
