"""How an instance is launched, whoever launches it: network cards, metadata, tags, disk."""

from __future__ import annotations

from typing import Any

from kiln.base.errors import KilnError
from kiln.base.tags import CHANNEL, LINE, MIG_CONFIG
from kiln.consume.launch_request import LaunchRequest


def network_interfaces(wanted: LaunchRequest) -> list[dict[str, Any]]:
    """The cards of an instance type with EFA, as launch templates name their fields; else [].

    One interface with an address, and one for EFA alone on each card that can:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html

    Raises KilnError (exit status 2) for a type whose cards nobody has published.
    """
    kind = wanted.instance_type
    if not (kind.efa and wanted.recipe.efa):
        return []
    if not kind.efa_published:
        raise KilnError(
            f"nobody has published which network cards of {kind.type} have EFA",
            hint="take an image without EFA, or write the cards into "
            "kiln/facts/knowledge/instances.yaml",
        )
    first = {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface"}
    return [
        first,
        *(
            {"NetworkCardIndex": card, "DeviceIndex": 0 if card else 1, "InterfaceType": "efa-only"}
            for card in kind.efa_cards
        ),
    ]


def metadata_options(tags: str = "enabled") -> dict[str, Any]:
    """IMDSv2 alone; two hops, so that containers reach it. `tags`: whether it shows those of the
    instance."""
    return {
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 2,
        "InstanceMetadataTags": tags,
    }


def instance_tags(wanted: LaunchRequest) -> dict[str, str]:
    """The tags of the instances: what they follow, and their MIG layout."""
    own = {"Name": wanted.name, LINE: wanted.line, CHANNEL: wanted.channel}
    return own | ({MIG_CONFIG: wanted.label} if wanted.label else {})


def root_disk(wanted: LaunchRequest) -> dict[str, Any]:
    """The root disk: as large as the image's at least, encrypted."""
    volume = wanted.recipe.volume
    return {
        "DeviceName": wanted.recipe.distro.root_device,
        "Ebs": {
            "VolumeSize": volume.size,
            "VolumeType": "gp3",
            "Encrypted": True,
            "DeleteOnTermination": True,
        },
    }


def pairs(tags_: dict[str, str]) -> list[dict[str, str]]:
    """Tags as AWS's APIs take them."""
    return [{"Key": key, "Value": value} for key, value in tags_.items()]


def launch_data(wanted: LaunchRequest, image: Any, *, groups: Any, **more: Any) -> dict[str, Any]:
    """LaunchTemplateData. `groups` are the security groups: a list, or what stands for one.

    With EFA they must allow all traffic within themselves, or nothing is sent.
    """
    data: dict[str, Any] = {
        "ImageId": image,
        "InstanceType": wanted.instance_type.type,
        "MetadataOptions": metadata_options(),
        "BlockDeviceMappings": [root_disk(wanted)],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": pairs(instance_tags(wanted))}
            for kind in ("instance", "volume")
        ],
    }
    interfaces = network_interfaces(wanted)
    if interfaces:
        data["NetworkInterfaces"] = [
            card | {"Groups": groups, "DeleteOnTermination": True} for card in interfaces
        ]
    else:
        data["SecurityGroupIds"] = groups
    return data | more
