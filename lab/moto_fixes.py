"""Everything that the lab replaces in moto, seen in moto 5.2.5.

Some of it connects moto's EC2 and SSM to the lab's machines and disks, the rest corrects what moto
answers otherwise than EC2. moto has no hooks for either: methods of its backends and responses are
replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import moto.ec2.models.amis as moto_amis
import moto.ec2.models.iam_instance_profile as moto_profiles
import moto.ec2.models.instances as moto_instances
import moto.ec2.responses.amis as moto_amis_responses
import moto.ec2.responses.instances as moto_instances_responses
import moto.ec2.utils as moto_ec2_utils
import moto.ssm.models as moto_ssm
from moto.core.exceptions import ServiceException
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError

from lab import imaging, instances

# Each AMI of the lab is Linux with ENA. UsageOperation of Linux:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-info-fields.html
_OF_ALL_IMAGES = {
    "ena_support": True,
    "sriov_net_support": "simple",
    "platform_details": "Linux/UNIX",
    "usage_operation": "RunInstances",
}
_BY_PARAMETER = "resolve:ssm:"


def install(machines: instances.Machines) -> None:
    """Connect moto's EC2 and SSM to `machines`. Call it once per process."""
    instances.LabInstance.machines = machines
    moto_instances.Instance = instances.LabInstance
    backend = moto_instances.InstanceBackend
    backend.run_instances = _launching(backend.run_instances)
    moto_amis.Ami.block_device_mappings = property(imaging.block_device_mappings)
    moto_amis.AmiBackend.create_image = imaging.create_image
    moto_amis.AmiBackend.deregister_image = imaging.deregistering(
        moto_amis.AmiBackend.deregister_image
    )
    # moto: no tags, no encryption, 15 GiB on "standard".
    moto_amis_responses.AmisResponse.copy_image = imaging.copy_image
    for module in (moto_profiles, moto_instances_responses):
        module.filter_iam_instance_profiles = _profile_or_error(module.filter_iam_instance_profiles)
    associations = moto_profiles.IamInstanceProfileAssociationBackend
    associations.replace_iam_instance_profile_association = _replacing(
        associations.replace_iam_instance_profile_association
    )
    load_public = moto_amis.AmiBackend._load_amis

    def load_all(backend: Any) -> None:
        load_public(backend)
        for image in machines.public.values():
            backend.amis[image.id].deprecation_time = image.deprecated
        imaging.restore(backend)

    moto_amis.AmiBackend._load_amis = load_all
    # moto: DescribeImages shows none of these.
    for name, value in _OF_ALL_IMAGES.items():
        setattr(moto_amis.Ami, name, value)
    _serve_parameters(machines)


def _launching(run_instances: Callable[..., Any]) -> Callable[..., Any]:
    def run_and_launch(backend: Any, image_id: str, *arguments: Any, **named: Any) -> Any:
        template = _of_template(backend, named)
        image_id = _resolved(backend, image_id or template.pop("image_id", ""))
        named |= {name: value for name, value in template.items() if name != "image_id"}
        reservation = run_instances(backend, image_id, *arguments, **named)
        _associate(backend, reservation.instances, named)
        for instance in reservation.instances:
            instance.launch()
        return reservation

    return run_and_launch


def _of_template(backend: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a launch that moto does not take from its launch template.

    moto takes the image too late for its own check and for the lab, and no metadata options.
    """
    if not asked.get("launch_template"):
        return {}
    data = backend._get_template_from_args(asked["launch_template"]).data
    behavior = "instance_initiated_shutdown_behavior"
    return {
        "image_id": data.get("ImageId", ""),
        "metadata_options": data.get("MetadataOptions", {}) | asked.get("metadata_options", {}),
        behavior: asked.get(behavior) or data.get("InstanceInitiatedShutdownBehavior"),
        "iam_instance_profile": asked.get("iam_instance_profile") or data.get("IamInstanceProfile"),
    }


def _associate(backend: Any, launched: list[Any], asked: dict[str, Any]) -> None:
    """Give each new instance its profile, by the call, its launch template or its fleet.

    moto does it for the first instance of a call that names a profile, after this.
    """
    name, arn = asked.get("iam_instance_profile_name"), asked.get("iam_instance_profile_arn")
    if name or arn:
        launched = launched[1:]
    elif profile := asked.get("iam_instance_profile"):
        if isinstance(profile, str):  # a spot request's
            arn = profile
        else:
            name, arn = profile.get("Name"), profile.get("Arn")
    if name or arn:
        for instance in launched:
            backend.associate_iam_instance_profile(instance.id, name, arn)


def _profile_or_error(find: Callable[..., Any]) -> Callable[..., Any]:
    """moto: IAM's NoSuchEntity. EC2's error:
    https://github.com/hashicorp/terraform-provider-aws/issues/27516
    """

    def profile(account: str, partition: str, **named: Any) -> Any:
        try:
            found = find(account, partition=partition, **named)
        except ServiceException:
            found = None
        if found is None:
            by = "arn" if named["iam_instance_profile_arn"] else "name"
            raise EC2ClientError(
                "InvalidParameterValue",
                f"Value ({named[f'iam_instance_profile_{by}']}) for parameter "
                f"iamInstanceProfile.{by} is invalid. Invalid IAM Instance Profile {by}",
            )
        return found

    return profile


def _replacing(replace: Callable[..., Any]) -> Callable[..., Any]:
    """moto keeps the association's id. EC2 makes a new association:
    https://docs.aws.amazon.com/cli/latest/reference/ec2/replace-iam-instance-profile-association.html
    """

    def replace_with_new_id(backend: Any, *arguments: Any, **named: Any) -> Any:
        association = replace(backend, *arguments, **named)
        association.association_id = moto_ec2_utils.random_iam_instance_profile_association_id()
        return association

    return replace_with_new_id


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
    found = None
    with contextlib.suppress(ServiceException):  # no such version or label
        found = parameters.get_parameter(name)
    if found is None:
        raise EC2ClientError(
            "InvalidParameterValue", f"The SSM parameter {name} of the image ID does not exist"
        )
    return str(found.value)


def _serve_parameters(machines: instances.Machines) -> None:
    """The public SSM parameters of the parent images, in every region."""
    parameters = {name: image.id for image in machines.public.values() for name in image.parameters}

    def prepare(self: Any, account_id: str, region_name: str) -> None:
        super(moto_ssm.ParameterDict, self).__init__(list)
        self.account_id, self.region_name = account_id, region_name
        self.latest_amis_loaded = self.latest_ecs_amis_loaded = True
        self.latest_region_defaults_loaded = self.latest_service_defaults_loaded = False
        for name, value in parameters.items():
            super(moto_ssm.ParameterDict, self).__getitem__(name).append(
                moto_ssm.Parameter(
                    account_id=account_id,
                    name=name,
                    value=value,
                    parameter_type="String",
                    description=None,
                    allowed_pattern=None,
                    keyid=None,
                    last_modified_date=utcnow(),
                    version=1,
                    data_type="aws:ec2:image",
                )
            )

    moto_ssm.ParameterDict.__init__ = prepare
