"""IAM, KMS, S3 and CloudWatch, with what moto answers otherwise than AWS."""

from __future__ import annotations

import base64
import copy
import json
import threading
from typing import Any

import moto.cloudwatch.urls as cloudwatch_urls
import moto.iam.urls as iam_urls
import moto.kms.urls as kms_urls
import moto.s3.urls as s3_urls
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from moto.cloudwatch.models import CloudWatchBackend
from moto.iam.access_control import PermissionResult
from moto.iam.models import IAMBackend
from moto.kms.models import KmsBackend
from moto.kms.responses import KmsResponse
from moto.s3.models import S3Backend

_reading_policies = threading.Lock()


class LabIAM(IAMBackend):  # type: ignore[misc]
    """IAM. AWS's own policies, some 1,600, are read when they are first asked for: moto reads them
    at its first request, whatever that is."""

    _url_module = iam_urls

    def _init_aws_policies(self) -> list[Any]:
        return []

    @property
    def managed_policies(self) -> dict[str, Any]:
        """The account's and AWS's policies by ARN."""
        with _reading_policies:
            if "_policies" not in self.__dict__:
                self._policies = {policy.arn: policy for policy in super()._init_aws_policies()}
            return self._policies

    @managed_policies.setter
    def managed_policies(self, none: dict[str, Any]) -> None:
        """moto has read none."""


class LabKMS(KmsBackend):  # type: ignore[misc]
    """KMS. The key of AWS's alias is AWS's."""

    _url_module = kms_urls

    @property
    def url_paths(self) -> dict[str, Any]:
        """The paths that the lab's class of answers has."""
        return {"/$": LabKmsResponse.dispatch}

    def create_alias(self, target_key_id: str, alias_name: str) -> Any:
        """Make an alias; moto: the key of AWS's alias is a customer's."""
        if alias_name.startswith("alias/aws/"):
            self.keys[self.get_key_id(target_key_id)].key_manager = "AWS"
        return super().create_alias(target_key_id, alias_name)


class LabKmsResponse(KmsResponse):  # type: ignore[misc]
    """KMS's answers."""

    def sign(self) -> str:
        """Sign; moto hashes a digest (MessageType DIGEST) again."""
        if self._get_param("MessageType") != "DIGEST":
            return str(super().sign())
        algorithm, key_id = (self._get_param(name) for name in ("SigningAlgorithm", "KeyId"))
        key = self.kms_backend.describe_key(key_id)
        kind = getattr(hashes, f"SHA{algorithm[-3:]}")()
        pad = padding.PSS(padding.MGF1(kind), padding.PSS.DIGEST_LENGTH)
        ways: dict[str, list[Any]] = {
            "ECDSA": [ec.ECDSA(Prehashed(kind))],
            "RSASSA_PKCS1": [padding.PKCS1v15(), Prehashed(kind)],
            "RSASSA_PSS": [pad, Prehashed(kind)],
        }
        how = ways[algorithm.replace("_V1_5", "").rpartition("_SHA")[0]]
        signature = key.private_key.private_key.sign(self._get_param("Message"), *how)
        text = base64.b64encode(signature).decode()
        return json.dumps({"KeyId": key.arn, "Signature": text, "SigningAlgorithm": algorithm})


class LabS3(S3Backend):  # type: ignore[misc]
    """S3. The lab judges no policies; moto's buckets deny whatever a policy's conditions say."""

    _url_module = s3_urls

    def create_bucket(self, *arguments: Any, **named: Any) -> Any:
        """Make a bucket whose policy decides nothing."""
        bucket = super().create_bucket(*arguments, **named)
        bucket.get_permission = lambda action, resource: PermissionResult.NEUTRAL
        return bucket


class LabCloudWatch(CloudWatchBackend):  # type: ignore[misc]
    """CloudWatch."""

    _url_module = cloudwatch_urls

    def get_metric_data(self, queries: list[dict[str, Any]], *more: Any, **named: Any) -> list[Any]:
        """Read metrics; moto: a series with dimensions counts those of other namespaces too."""
        results = []
        for query in queries:
            view, stat = copy.copy(self), query.get("MetricStat")
            if stat:
                name = stat["Metric"]["Namespace"]
                view.metric_data = [d for d in self.metric_data if d.namespace == name]
            results += CloudWatchBackend.get_metric_data(view, [query], *more, **named)
        return results
