"""What an account has set in a region, besides its resources: defaults, and who may share what.

It lasts as long as the lab is up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from moto.ec2.exceptions import EC2ClientError

from lab.ec2.calls import Request, call, error
from lab.storage import volume_keys


@dataclass
class Settings:
    """The settings of an account in a region.

    A new account's public sharing of AMIs is blocked, that of snapshots is not.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/block-public-access-to-amis.html
    https://docs.aws.amazon.com/ebs/latest/userguide/block-public-access-snapshots.html
    """

    images_public: str = "block-new-sharing"
    snapshots_public: str = "unblocked"
    metadata: dict[str, Any] = field(default_factory=dict)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    # What calls with a client token were answered, by call and token (lab.ec2.tokens).
    tokens: dict[tuple[str, str], Any] = field(default_factory=dict)


_BLOCKED = "block-new-sharing"


def of(backend: Any) -> Settings:
    """The settings of moto's backend of an account and region."""
    if not hasattr(backend, "kiln_settings"):
        backend.kiln_settings = Settings()
    settings: Settings = backend.kiln_settings
    return settings


@call("EnableImageBlockPublicAccess")
def _block_images(request: Request) -> dict[str, Any]:
    state = request.parameters["ImageBlockPublicAccessState"]
    if state != _BLOCKED:
        raise _invalid(state, "imageBlockPublicAccessState")
    of(request.backend).images_public = state
    return {"ImageBlockPublicAccessState": state}


@call("DisableImageBlockPublicAccess")
def _unblock_images(request: Request) -> dict[str, Any]:
    of(request.backend).images_public = "unblocked"
    return {"ImageBlockPublicAccessState": "unblocked"}


@call("GetImageBlockPublicAccessState")
def _images_blocked(request: Request) -> dict[str, Any]:
    state = of(request.backend).images_public
    return {"ImageBlockPublicAccessState": state, "ManagedBy": "account"}


@call("EnableSnapshotBlockPublicAccess")
def _block_snapshots(request: Request) -> dict[str, Any]:
    state = request.parameters["State"]
    if state not in ("block-all-sharing", _BLOCKED):
        raise _invalid(state, "state")
    of(request.backend).snapshots_public = state
    return {"State": state}


@call("DisableSnapshotBlockPublicAccess")
def _unblock_snapshots(request: Request) -> dict[str, Any]:
    of(request.backend).snapshots_public = "unblocked"
    return {"State": "unblocked"}


@call("GetSnapshotBlockPublicAccessState")
def _snapshots_blocked(request: Request) -> dict[str, Any]:
    return {"State": of(request.backend).snapshots_public, "ManagedBy": "account"}


@call("GetEbsDefaultKmsKeyId")
def _default_key(request: Request) -> dict[str, Any]:
    """moto keeps the key, and has AWS's own there since it first encrypted with it."""
    key = request.backend.default_kms_key_id
    own = not key or volume_keys.is_awss_own(request.backend, key)
    return {"KmsKeyId": "alias/aws/ebs" if own else key}


_DEFAULTS = ("HttpTokens", "HttpEndpoint", "InstanceMetadataTags", "HttpTokensEnforced")


@call("ModifyInstanceMetadataDefaults")
def _modify_metadata(request: Request) -> dict[str, Any]:
    metadata = of(request.backend).metadata
    for name in _DEFAULTS:
        value = request.parameters.get(name)
        if value == "no-preference":
            metadata.pop(name, None)
        elif value is not None:
            metadata[name] = value
    hops = request.parameters.get("HttpPutResponseHopLimit")
    if hops is not None:
        if int(hops) != -1 and not 1 <= int(hops) <= 64:
            raise _invalid(hops, "httpPutResponseHopLimit")
        metadata.pop("HttpPutResponseHopLimit", None)
        if int(hops) != -1:
            metadata["HttpPutResponseHopLimit"] = int(hops)
    return {"Return": True}


@call("GetInstanceMetadataDefaults")
def _metadata(request: Request) -> dict[str, Any]:
    metadata = of(request.backend).metadata
    return {"AccountLevel": metadata | {"ManagedBy": "account"} if metadata else {}}


def _invalid(value: Any, name: str) -> EC2ClientError:
    return error("InvalidParameterValue", f"Value ({value}) for parameter {name} is invalid.")
