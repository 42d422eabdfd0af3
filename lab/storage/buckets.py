"""The lab's S3 buckets, which moto keeps."""

from __future__ import annotations

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.exceptions import S3ClientError
from moto.s3.models import s3_backends

_PARTITION = "aws"


def exists(name: str) -> bool:
    """Whether the lab has a bucket of this name."""
    return any(name in backend.buckets for backend in s3_backends[DEFAULT_ACCOUNT_ID].values())


def read(bucket: str, key: str) -> bytes | None:
    """An object; None where there is none."""
    try:
        stored = s3_backends[DEFAULT_ACCOUNT_ID][_PARTITION].get_object(bucket, key)
    except S3ClientError:
        return None
    return bytes(stored.value) if stored else None


def write(bucket: str, key: str, content: bytes, tags: dict[str, str]) -> None:
    """Write an object into a bucket that exists."""
    backend = s3_backends[DEFAULT_ACCOUNT_ID][_PARTITION]
    made = backend.put_object(bucket, key, content)
    if tags:
        backend.put_object_tagging(made, tags)
