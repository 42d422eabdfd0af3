"""The KMS keys that volumes are encrypted with."""

from __future__ import annotations

from typing import Any


def arn_of(backend: Any, key: str) -> str | None:
    """The ARN, with which volumes and snapshots are shown, of a key that a call names by id, ARN,
    alias or the alias's ARN. None if the account has no such key in the backend's region."""
    parts = key.split(":")
    if len(parts) > 4 and parts[3] != backend.region_name:
        return None  # moto looks for the name alone
    try:
        return str(_keys(backend).describe_key(key).arn)
    except (KeyError, AttributeError):  # moto's, for an id and for an alias
        return None


def is_awss_own(backend: Any, arn: str | None) -> bool:
    """Return True if AWS manages the key, as it does `alias/aws/ebs`."""
    key = _keys(backend).keys.get((arn or "").rpartition("/")[2])
    return key is not None and key.key_manager == "AWS"


def _keys(backend: Any) -> Any:
    from moto.kms import kms_backends

    return kms_backends[backend.account_id][backend.region_name]
