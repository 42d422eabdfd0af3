"""The lab's S3 buckets, which moto keeps."""

from __future__ import annotations

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends


def exists(name: str) -> bool:
    """Return True if the lab has a bucket of this name."""
    return any(name in backend.buckets for backend in s3_backends[DEFAULT_ACCOUNT_ID].values())
