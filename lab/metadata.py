"""What IMDS answers for an instance, read from moto."""

from __future__ import annotations

import base64
import contextlib
from typing import Any

from lab import role_credentials
from lab.imds import Metadata
from lab.instances import LabInstance


def of(address: str) -> Metadata | None:
    """The metadata of the instance at `address`; None when there is none."""
    instance = LabInstance.machines.by_address.get(address)
    if instance is None:
        return None
    region = instance.region_name
    zone = instance.availability_zone or f"{region}a"
    host = instance.private_dns_name
    data: dict[str, Any] = {
        "ami-id": instance.image_id,
        "ami-launch-index": str(instance.ami_launch_index),
        "ami-manifest-path": "(unknown)",
        "block-device-mapping": {
            "ami": instance.root_device_name,
            "root": instance.root_device_name,
        },
        "hostname": host,
        "instance-action": "none",
        "instance-id": instance.id,
        "instance-life-cycle": instance.lifecycle or "on-demand",
        "instance-type": instance.instance_type,
        "local-hostname": host,
        "local-ipv4": address,
        "mac": instance.nics[0].mac_address,
        "placement": {
            "availability-zone": zone,
            "availability-zone-id": "use1-az1",
            "region": region,
        },
        "profile": "default-hvm",
        "reservation-id": "r-lab",
        "security-groups": "\n".join(group.name for group in instance.security_groups),
        "services": {"domain": "amazonaws.com", "partition": "aws"},
    }
    data |= role_credentials.of(instance)
    if instance.public_ip_address:
        data |= {"public-hostname": instance.public_dns_name, "public-ipv4": address}
    key = _public_key(instance)
    if key:
        data["public-keys"] = {f"0={instance.key_name}": {"openssh-key": key}}
    if instance.metadata_options.instance_metadata_tags == "enabled":
        data["tags"] = {"instance": {tag["key"]: tag["value"] for tag in instance.get_tags()}}
    identity = {
        "accountId": instance.owner_id,
        "architecture": instance.architecture,
        "availabilityZone": zone,
        "imageId": instance.image_id,
        "instanceId": instance.id,
        "instanceType": instance.instance_type,
        "pendingTime": instance.launch_time.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "privateIp": address,
        "region": region,
        "version": "2017-09-30",
    }
    options = instance.metadata_options
    return Metadata(
        data=dict(sorted(data.items())),
        user_data=_user_data(instance),
        identity=identity,
        tokens_required=options.http_tokens == "required",
        enabled=options.http_endpoint != "disabled",
        hop_limit=int(options.http_put_response_hop_limit or 1),
    )


def _public_key(instance: LabInstance) -> str | None:
    for pair in instance.ec2_backend.key_pairs.values():
        if pair.key_name == instance.key_name:
            return str(pair.public_key).strip() + f" {pair.key_name}"
    return None


def _user_data(instance: LabInstance) -> bytes | None:
    raw = instance.user_data
    if not raw:
        return None
    with contextlib.suppress(ValueError):
        return base64.b64decode(str(raw), validate=True)
    return str(raw).encode()
