"""RunInstances, and the launches of fleets and Auto Scaling: what a launch asks for, and may.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import re
from collections.abc import Callable
from typing import Any

import moto.ssm.models as moto_ssm
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPES

from lab.moto.ec2 import capacity_reservations, filters, images, instance_profiles, volumes
from lab.moto.ec2.calls import Request, call, error, is_device

_BY_PARAMETER = "resolve:ssm:"
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html
_USER_DATA_MOST = 16 << 10
# Types with a processor of Arm's: the same as moto's list of types says of each (moto 5.2.5, 1395
# types), and for types that it lacks.
_ARM = re.compile(r"a1\.|[a-z]+[0-9]+g|[a-z]+[0-9]+[a-z]*-gb|im4gn|is4gen")


@call("RunInstances", tries=True)
def _run(request: Request) -> Any:
    parameters, response = request.parameters, request.response
    least, most = (_count(parameters, name) for name in ("MinCount", "MaxCount"))
    if least > most:
        raise error(
            "InvalidParameterValue",
            f"The minimum count ({least}) must not be greater than the maximum count ({most})",
        )
    check_user_data(parameters.get("UserData"), "InvalidParameterValue")
    profile = parameters.get("IamInstanceProfile") or {}
    instance_profiles.require(request.backend, profile.get("Name"), profile.get("Arn"))
    # As many as there is capacity for: here, all. moto makes as many as the least.
    response.params = parameters | {"MinCount": most}
    reservation_id = capacity_reservations.check_launch(request, most)
    made: ActionResult = request.moto_answer()
    for instance in made.result.instances if reservation_id else []:
        instance.capacity_reservation_id = reservation_id
    return made.result


def _count(parameters: dict[str, Any], name: str) -> int:
    count = parameters[name]
    if int(count) < 1:
        raise error("InvalidParameterValue", f"Value ({count}) for parameter {name} is invalid.")
    return int(count)


def check_user_data(encoded: Any, code: str) -> None:
    """Refuse user data that is not base64, or longer than EC2 takes.

    `code`: RunInstances and launch templates have different ones (lab/moto/ec2/errors.yaml).
    """
    if not encoded:
        return
    try:
        raw = base64.b64decode(str(encoded), validate=True)
    except (ValueError, binascii.Error):
        raise error(code, "Invalid BASE64 encoding of user data.") from None
    if len(raw) > _USER_DATA_MOST:
        raise error(code, "User data is limited to 16384 bytes")


def run(
    backend: Any,
    run_instances: Callable[..., Any],
    image_id: str,
    *arguments: Any,
    **named: Any,
) -> Any:
    """Launch by moto's `run_instances`, with what EC2 checks and fills in."""
    by_call = instance_profiles.named(named)
    template = _template_arguments(backend, named)
    image_id = _resolved(backend, image_id or template.pop("image_id", ""))
    named |= {name: value for name, value in template.items() if name != "image_id"}
    ami = _may_be_launched(backend, image_id)
    _fits(named, template, ami)
    named["public_address"] = _public(backend, named)
    named["metadata_options"] = _metadata_options(ami, named["metadata_options"])
    named["block_device_mappings"] = _volumes(backend, ami, named)
    if not (named.get("security_group_ids") or any(arguments[2:3]) or named.get("nics")):
        groups = _default_groups(backend, named, template)
        named |= {"security_group_ids": groups} if groups else {}
    reservation = run_instances(image_id, *arguments, **named)
    ami.last_launched_time = utcnow().strftime("%Y-%m-%dT%H:%M:%S.000Z")
    instance_profiles.associate(backend, reservation.instances, named, by_call=by_call)
    for instance in reservation.instances:
        instance.launch()
    return reservation


def _template_arguments(backend: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a launch that moto does not take from its launch template.

    moto takes the image too late for its own check and for the lab, and no metadata options.
    """
    parameters.setdefault("metadata_options", {})
    if not parameters.get("launch_template"):
        return {}
    data = backend._get_template_from_args(parameters["launch_template"]).data
    behavior = "instance_initiated_shutdown_behavior"
    of_template = {
        "image_id": data.get("ImageId", ""),
        "metadata_options": data.get("MetadataOptions", {}) | parameters["metadata_options"],
        behavior: parameters.get(behavior) or data.get("InstanceInitiatedShutdownBehavior"),
    }
    if not parameters.get("block_device_mappings") and data.get("BlockDeviceMappings"):
        of_template["block_device_mappings"] = data["BlockDeviceMappings"]
    profile = data.get("IamInstanceProfile") or {}
    if not (
        parameters.get("iam_instance_profile_name") or parameters.get("iam_instance_profile_arn")
    ):
        of_template |= {
            "iam_instance_profile_name": profile.get("Name"),
            "iam_instance_profile_arn": profile.get("Arn"),
        }
    if parameters.get("is_instance_type_default") and data.get("InstanceType"):
        of_template["instance_type"] = data["InstanceType"]
    if not parameters.get("nics") and data.get("NetworkInterfaces"):
        of_template["nics"] = data["NetworkInterfaces"]
    return of_template


def _public(backend: Any, named: dict[str, Any]) -> bool:
    """Return True if the first interface has a public address: as the launch says, otherwise as its
    subnet has it; a default subnet gives one.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/working-with-ip-addresses.html
    """
    nics: list[dict[str, Any]] = named.get("nics") or []
    first = next((nic for nic in nics if not int(nic.get("DeviceIndex") or 0)), {})
    if first.get("AssociatePublicIpAddress") is not None:
        return bool(first["AssociatePublicIpAddress"])
    subnet = named.get("subnet_id") or first.get("SubnetId")
    if not subnet:
        return True
    # moto has the attribute as it was sent: a text, or a boolean.
    return str(backend.get_subnet(subnet).map_public_ip_on_launch).lower() == "true"


def _resolved(backend: Any, image_id: str) -> str:
    """The AMI's id that `resolve:ssm:` with a parameter's name, version or label stands for.

    EC2's error for a parameter that does not exist was not seen.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-systems-manager-parameter-to-find-AMI.html
    """
    if not image_id:
        raise EC2ClientError(
            "MissingParameter", "The request must contain the parameter ImageId or LaunchTemplate"
        )
    if not image_id.startswith(_BY_PARAMETER):
        return image_id
    name = image_id[len(_BY_PARAMETER) :]
    parameters = moto_ssm.ssm_backends[backend.account_id][backend.region_name]
    resolved = None
    with contextlib.suppress(ServiceException):  # no such version or label
        resolved = parameters.get_parameter(name)
    if resolved is None:
        raise EC2ClientError(
            "InvalidParameterValue", f"The SSM parameter {name} of the image ID does not exist"
        )
    # The page above: the parameter has this data type. EC2's error for another one was not seen.
    if resolved.data_type != "aws:ec2:image":
        raise EC2ClientError(
            "InvalidParameterValue",
            f"The SSM parameter {name} of the image ID is not of the data type aws:ec2:image",
        )
    return str(resolved.value)


def _may_be_launched(backend: Any, image_id: str) -> Any:
    ami = images.find(backend, image_id)
    if ami.state != "available":
        raise error(
            "InvalidAMIID.Unavailable", f"The image ID '{image_id}' is not available: {ami.state}"
        )
    return ami


@functools.cache
def _types() -> frozenset[str]:
    """The names of EC2's instance types, in the AWS SDK's model."""
    return frozenset(filters.model().shape_for("InstanceType").enum)


def _fits(named: dict[str, Any], template: dict[str, Any], ami: Any) -> None:
    """Raise EC2's error for an unknown type, or one of another processor than the AMI's."""
    kind = named.get("instance_type") or ""
    if named.get("is_instance_type_default") or not kind:
        if not named.get("launch_template"):
            return
        kind = template.get("instance_type") or kind
    if kind not in _types():
        raise error("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
    if any("efa" in str(nic.get("InterfaceType")) for nic in named.get("nics") or []):
        known = INSTANCE_TYPES.get(kind)
        if known and not known["NetworkInfo"].get("EfaSupported"):
            # The sentence as in https://github.com/devopsacademyau/academy/pull/277
            raise error(
                "InvalidParameterCombination",
                f"{kind} instances do not support Elastic Fabric Adapters.",
            )
    arch = "arm64" if _ARM.match(kind) else "x86_64"
    if ami.architecture in ("arm64", "x86_64") and ami.architecture != arch:
        raise error(
            "InvalidParameterValue",
            f"The architecture '{arch}' of the specified instance type does not match the "
            f"architecture '{ami.architecture}' of the specified AMI",
        )


def _metadata_options(ami: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """The launch's own options, then the AMI's.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-options.html
    """
    of_image = {}
    if getattr(ami, "imds_support", None) == "v2.0":
        of_image = {"HttpTokens": "required", "HttpPutResponseHopLimit": 2}
    hops = parameters.get("HttpPutResponseHopLimit")
    if hops is not None and not 1 <= int(hops) <= 64:
        raise error("InvalidParameterValue", f"The hop limit must be from 1 to 64, and is {hops}")
    return of_image | parameters


def _volumes(backend: Any, ami: Any, named: dict[str, Any]) -> list[dict[str, Any]]:
    """The volumes of a launch: those of the AMI, changed and completed by what was asked for.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/block-device-mapping-concepts.html
    """
    asked = named.get("block_device_mappings")
    if asked is None and named.get("launch_config"):
        asked = named["launch_config"].block_device_mapping_dict
    (root,) = ami.block_device_mappings
    volume = dict(root["Ebs"])
    for entry in asked or []:
        device = entry.get("DeviceName")
        if not is_device(device):
            # As in https://github.com/aws/aws-cli/issues/1071
            raise error("InvalidBlockDeviceMapping", f"Invalid device name {device}")
        if entry.get("VirtualName") or entry.get("NoDevice") is not None:
            continue
        if device != root["DeviceName"]:
            raise error("UnsupportedOperation", volumes.ROOT_ONLY)
        volume |= {
            name: value for name, value in (entry.get("Ebs") or {}).items() if value is not None
        }
    _large_enough(backend, volume)
    _in_proportion(volume)
    return [{"DeviceName": root["DeviceName"], "Ebs": volume}]


def _large_enough(backend: Any, ebs: dict[str, Any]) -> None:
    snapshot_id, size = ebs.get("SnapshotId"), ebs.get("VolumeSize")
    if not snapshot_id:
        return
    if snapshot_id not in backend.snapshots:
        raise error("InvalidSnapshot.NotFound", f"The snapshot '{snapshot_id}' does not exist.")
    least = int(backend.snapshots[snapshot_id].volume.size)
    if size is not None and int(size) < least:
        raise error(
            "InvalidBlockDeviceMapping",
            f"Volume of size {size}GB is smaller than snapshot '{snapshot_id}', expect size >= "
            f"{least}GB",
        )


def _in_proportion(ebs: dict[str, Any]) -> None:
    """As in https://github.com/rocicorp/mono/pull/4410 and
    https://github.com/runs-on/runs-on/issues/260; the code of the second is assumed."""
    if ebs.get("VolumeType") != "gp3":
        return
    iops, size = int(ebs.get("Iops") or 3000), int(ebs.get("VolumeSize") or 0)
    throughput = int(ebs.get("Throughput") or 125)
    if size and iops > max(3000, 500 * size):
        raise error(
            "InvalidParameterValue",
            f"Iops to volume size ratio of {iops / size:.6f} is too high; maximum is 500",
        )
    if throughput * 4 > iops:
        raise error(
            "InvalidParameterValue",
            f"Throughput (MiBps) to iops ratio of {throughput / iops:.6f} is too high; maximum is "
            "0.250000 MiBps per iops",
        )


def _default_groups(backend: Any, named: dict[str, Any], template: dict[str, Any]) -> list[str]:
    """The default security group of the VPC, for a launch that names none."""
    if template.get("nics") or named.get("launch_template"):
        data = backend._get_template_from_args(named["launch_template"]).data
        if data.get("SecurityGroupIds") or data.get("SecurityGroups") or template.get("nics"):
            return []
    if named.get("subnet_id"):
        vpc = backend.get_subnet(named["subnet_id"]).vpc_id
    else:
        default = backend.get_default_vpc()
        vpc = default.id if default else None
    group = backend.get_security_group_from_name("default", vpc) if vpc else None
    return [group.id] if group else []
