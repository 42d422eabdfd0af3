"""The policies of resources, which moto keeps: of buckets (S3), topics (SNS), queues (SQS), keys
(KMS), and the trust policies of roles."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.kms.models import kms_backends
from moto.s3.models import s3_backends
from moto.sns.models import sns_backends
from moto.sqs.models import sqs_backends

from lab.access.iam_policy import Attached

# A role that does not exist trusts nobody.
_NOBODY = Attached(json.dumps({"Statement": []}), alone=True)


def find(action: str, arn: str) -> Attached | None:
    """The policy that a resource has about an action; None without one."""
    parts = arn.split(":", 5)
    kept = _KEPT.get(parts[2]) if len(parts) == 6 else None
    if kept is None or (parts[2] == "iam" and action != "sts:AssumeRole"):
        return None
    return kept(arn, *parts[3:])


def key_id(name: str, region: str) -> str | None:
    """What a key of KMS goes by in policies, its id, from an alias or an id; an ARN is one already.

    None for an alias that is nobody's.
    """
    if name.startswith("arn:") and ":key/" in name:
        return name
    keys = kms_backends[DEFAULT_ACCOUNT_ID][region].keys
    text = name.rpartition(":")[2]
    if text.startswith("alias/"):
        return next((key.id for key in keys.values() if text in key.aliases), None)
    return text


def _bucket(arn: str, region: str, account: str, name: str) -> Attached | None:
    wanted = name.partition("/")[0]
    for backends in s3_backends.values():
        for backend in backends.values():
            if wanted in backend.buckets:
                return _of(backend.buckets[wanted])
    return None


def _role(arn: str, region: str, account: str, name: str) -> Attached:
    iam = iam_backends[account]["aws"]
    role = next((role for role in iam.roles.values() if role.arn == arn), None)
    return Attached(_plain(role.assume_role_policy_document), alone=True) if role else _NOBODY


def _topic(arn: str, region: str, account: str, name: str) -> Attached | None:
    return _of(sns_backends[account][region].topics.get(arn))


def _queue(arn: str, region: str, account: str, name: str) -> Attached | None:
    return _of(sqs_backends[account][region].queues.get(name))


def _key(arn: str, region: str, account: str, name: str) -> Attached | None:
    # https://docs.aws.amazon.com/kms/latest/developerguide/key-policies.html
    policy = _of(kms_backends[account][region].keys.get(name.removeprefix("key/")))
    return replace(policy, alone=True) if policy else None


# Service in an ARN → what finds the policy, by ARN, region, account and name.
_KEPT: dict[str, Callable[[str, str, str, str], Attached | None]] = {
    "iam": _role,
    "kms": _key,
    "s3": _bucket,
    "sns": _topic,
    "sqs": _queue,
}


def _of(resource: Any) -> Attached | None:
    return Attached(_plain(resource.policy)) if getattr(resource, "policy", None) else None


def _plain(document: Any) -> str:
    if isinstance(document, bytes):
        return document.decode()
    return document if isinstance(document, str) else json.dumps(document)
