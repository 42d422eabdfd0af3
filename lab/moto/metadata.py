"""Answers of IMDS for an instance, read from moto."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

from lab.api.imds import Metadata
from lab.moto import role_credentials
from lab.moto.instances import LabInstance


def find(address: str) -> Metadata | None:
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
        "network": {"interfaces": {"macs": {instance.nics[0].mac_address: _interface(instance)}}},
    }
    data |= role_credentials.answers(instance)
    if instance.public_ip_address:
        public = str(instance.public_ip_address)
        data |= {"public-hostname": instance.public_dns_name, "public-ipv4": public}
    key = _public_key(instance)
    if key:
        data["public-keys"] = {f"0={instance.key_name}": {"openssh-key": key}}
    if instance.metadata_options.instance_metadata_tags == "enabled":
        data["tags"] = {"instance": {tag["key"]: tag["value"] for tag in instance.get_tags()}}
    options = instance.metadata_options
    return Metadata(
        data=dict(sorted(data.items())),
        user_data=_user_data(instance),
        identity=_identity(instance, zone),
        tokens_required=options.http_tokens == "required",
        enabled=options.http_endpoint != "disabled",
        hop_limit=int(options.http_put_response_hop_limit or 1),
    )


def _identity(instance: LabInstance, zone: str) -> dict[str, Any]:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-identity-documents.html"""
    document = json.dumps(
        {
            "accountId": instance.owner_id,
            "architecture": instance.architecture,
            "availabilityZone": zone,
            "billingProducts": None,
            "devpayProductCodes": None,
            "marketplaceProductCodes": None,
            "imageId": instance.image_id,
            "instanceId": instance.id,
            "instanceType": instance.instance_type,
            "kernelId": None,
            "pendingTime": instance.launch_time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "privateIp": instance.address,
            "ramdiskId": None,
            "region": instance.region_name,
            "version": "2017-09-30",
        },
        indent=2,
    )
    return {"document": document}


def _interface(instance: LabInstance) -> dict[str, str | dict[str, str]]:
    """The first interface. Its subnet is the lab's network, which the address is in."""
    nic, lab = instance.nics[0], instance.machines.lab
    groups = instance.security_groups
    entries: dict[str, str | dict[str, str]] = {
        "device-number": "0",
        "interface-id": nic.id,
        "local-hostname": instance.private_dns_name,
        "local-ipv4s": instance.address,
        "mac": nic.mac_address,
        "owner-id": str(instance.owner_id),
        "security-group-ids": "\n".join(group.id for group in groups),
        "security-groups": "\n".join(group.name for group in groups),
        "subnet-id": nic.subnet.id,
        "subnet-ipv4-cidr-block": lab.network,
        "vpc-id": nic.subnet.vpc_id,
        "vpc-ipv4-cidr-block": lab.network,
        "vpc-ipv4-cidr-blocks": lab.network,
    }
    if instance.public_ip_address:
        public = str(instance.public_ip_address)
        entries["public-hostname"] = instance.public_dns_name
        entries["public-ipv4s"] = public
        entries["ipv4-associations"] = {public: instance.address}
    return dict(sorted(entries.items()))


def _public_key(instance: LabInstance) -> str | None:
    for pair in list(instance.ec2_backend.key_pairs.values()):
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
