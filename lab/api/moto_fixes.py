"""Replaces what the lab needs otherwise in moto: `moto_patches.yaml` is the list, with the version.

Some of it connects moto's EC2 and SSM to the lab's machines and disks, the rest corrects what moto
answers otherwise than EC2. moto has no hooks for either: methods of its backends and responses are
replaced.
"""

from __future__ import annotations

import base64
import copy
import functools
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import moto.autoscaling.models as moto_autoscaling
import moto.cloudwatch.models as moto_cloudwatch
import moto.core.responses as moto_responses
import moto.ec2.models.amis as moto_amis
import moto.ec2.models.core as moto_core
import moto.ec2.models.elastic_block_store as moto_volumes
import moto.ec2.models.fleets as moto_fleets
import moto.ec2.models.instances as moto_instances
import moto.ec2.models.spot_requests as moto_spot
import moto.ec2.responses.amis as moto_amis_responses
import moto.ec2.responses.instances as moto_instance_responses
import moto.iam.models as moto_iam
import moto.kms.models as moto_kms
import moto.kms.responses as moto_kms_responses
import moto.s3.models as moto_s3
import moto.ssm.models as moto_ssm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from moto.core.utils import utcnow
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix
from moto.iam.access_control import PermissionResult
from moto.moto_server.werkzeug_app import DomainDispatcherApplication

from lab.ec2 import imaging, instance_profiles, known_images, launch, layer
from lab.ec2 import instances as ec2_instances
from lab.guests import instances
from lab.guests.machines import Machines
from lab.ssm import parameters
from lab.storage import volume_keys

# Each AMI of the lab is Linux with ENA. UsageOperation of Linux:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-info-fields.html
_OF_ALL_IMAGES = {
    "ena_support": True,
    "sriov_net_support": "simple",
    "platform_details": "Linux/UNIX",
    "usage_operation": "RunInstances",
}


def install(machines: Machines) -> None:
    """Connect moto's EC2 and SSM to `machines`. Call it once per process."""
    instances.LabInstance.machines = machines
    moto_instances.Instance = instances.LabInstance
    backend = moto_instances.InstanceBackend
    backend.run_instances = launch.launching(backend.run_instances)
    moto_amis.Ami.block_device_mappings = property(known_images.block_device_mappings)
    moto_amis.AmiBackend.create_image = imaging.create_image
    moto_amis.AmiBackend.deregister_image = known_images.deregistering(
        moto_amis.AmiBackend.deregister_image
    )
    # moto: no tags, no encryption, 15 GiB on "standard".
    moto_amis_responses.AmisResponse.copy_image = imaging.copy_image
    instance_profiles.install()
    load_public = moto_amis.AmiBackend._load_amis

    def load_all(backend: Any) -> None:
        load_public(backend)
        for image in machines.public.values():
            ami = backend.amis[image.id]
            ami.deprecation_time = image.deprecated
            # moto: 15 GiB.
            ami.ebs_snapshot.volume.size = image.disk
        known_images.restore(backend)

    moto_amis.AmiBackend._load_amis = load_all
    # moto: DescribeImages shows none of these.
    for name, value in _OF_ALL_IMAGES.items():
        setattr(moto_amis.Ami, name, value)
    moto_kms.KmsBackend.create_alias = volume_keys.managed(moto_kms.KmsBackend.create_alias)
    moto_kms_responses.KmsResponse.sign = _signing_digests(moto_kms_responses.KmsResponse.sign)
    # moto: DescribeVolumes shows no DeleteOnTermination.
    moto_volumes.VolumeAttachment.delete_on_termination = property(_deleted_with_instance)
    # moto: a fleet's and an Auto Scaling group's instances lack most of their launch template's
    # options, and a spot instance the id of its request.
    moto_spot.SpotInstanceRequest.launch_instance = ec2_instances.launch_spot
    moto_fleets.Fleet.create_on_demand_requests = ec2_instances.launch_on_demand
    groups = moto_autoscaling.FakeAutoScalingGroup
    groups.replace_autoscaling_group_instances = ec2_instances.with_its_version(
        groups.replace_autoscaling_group_instances
    )
    # moto: a volume of a launch has DeleteOnTermination false, and must have a size. The lab takes
    # what is asked for as it is: lab.ec2.launch completes it from the AMI.
    moto_instance_responses.InstanceResponse._parse_block_device_mapping = _asked_volumes
    # moto: a bucket's policy denies whatever its conditions say. The lab judges no policies.
    moto_s3.FakeBucket.get_permission = lambda bucket, action, arn: PermissionResult.NEUTRAL
    _serve_parameters(machines)
    layer.install()
    metrics = moto_cloudwatch.CloudWatchBackend
    metrics.get_metric_data = _in_its_namespace(metrics.get_metric_data)
    parameters.install()
    _read_json_as_json()
    _look_up_once()
    _load_policies_when_asked()


def _signing_digests(original: Callable[..., str]) -> Callable[..., str]:
    """moto: a digest (MessageType DIGEST) is hashed again."""

    def sign(response: Any) -> str:
        if response._get_param("MessageType") != "DIGEST":
            return original(response)
        algorithm, key_id = (response._get_param(name) for name in ("SigningAlgorithm", "KeyId"))
        key = response.kms_backend.describe_key(key_id)
        kind = getattr(hashes, f"SHA{algorithm[-3:]}")()
        pad = padding.PSS(padding.MGF1(kind), padding.PSS.DIGEST_LENGTH)
        ways: dict[str, list[Any]] = {
            "ECDSA": [ec.ECDSA(Prehashed(kind))],
            "RSASSA_PKCS1": [padding.PKCS1v15(), Prehashed(kind)],
            "RSASSA_PSS": [pad, Prehashed(kind)],
        }
        how = ways[algorithm.replace("_V1_5", "").rpartition("_SHA")[0]]
        signature = key.private_key.private_key.sign(response._get_param("Message"), *how)
        text = base64.b64encode(signature).decode()
        return json.dumps({"KeyId": key.arn, "Signature": text, "SigningAlgorithm": algorithm})

    return sign


def _in_its_namespace(original: Callable[..., Any]) -> Callable[..., Any]:
    """moto: a series with dimensions counts those of other namespaces too."""

    def get_metric_data(backend: Any, queries: list[dict[str, Any]], **more: Any) -> list[Any]:
        results = []
        for query in queries:
            view, stat = copy.copy(backend), query.get("MetricStat")
            if stat:
                name = stat["Metric"]["Namespace"]
                view.metric_data = [d for d in backend.metric_data if d.namespace == name]
            results += original(view, queries=[query], **more)
        return results

    return get_metric_data


def _read_json_as_json() -> None:
    """moto: reads a JSON body as a form too. A line of a log that holds
    `&Action=DeleteLogGroup&logGroupName=g&` names another call, and another group, than
    X-Amz-Target and the JSON, which policies were asked about. So does a header `logGroupName`."""
    responses = moto_responses.BaseResponse
    set_up, named = responses.setup_class, responses._get_action

    def action(self: Any) -> str:
        target = self.headers.get("x-amz-target")
        path = re.fullmatch(r"/service/[^/]+/operation/(\w+)", self.path)
        return str(target).rpartition(".")[2] if target else path[1] if path else named(self)

    def setup_class(self: Any, request: Any, *more: Any, **named: Any) -> None:
        set_up(self, request, *more, **named)
        if self.headers.get("x-amz-target") or self.path.startswith("/service/"):
            self.querystring.clear()

    responses._get_action, responses.setup_class = action, setup_class


def _serve_parameters(machines: Machines) -> None:
    """The public SSM parameters of the parent images, in every region."""
    images = machines.public.values()
    ids = [(name, image.id, "aws:ec2:image") for image in images for name in image.parameters]
    texts = [(*pair, "text") for pair in dict.fromkeys(t for image in images for t in image.texts)]

    def prepare(self: Any, account_id: str, region_name: str) -> None:
        super(moto_ssm.ParameterDict, self).__init__(list)
        self.account_id, self.region_name = account_id, region_name
        self.latest_amis_loaded = self.latest_ecs_amis_loaded = True
        self.latest_region_defaults_loaded = self.latest_service_defaults_loaded = False
        for name, value, data_type in (*ids, *texts):
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
                    data_type=data_type,
                )
            )

    moto_ssm.ParameterDict.__init__ = prepare


def _look_up_once() -> None:
    """moto: each request lists moto's own folder and inspects the service's class, which takes half
    of its time; and see `_own_tags`."""
    dispatcher = DomainDispatcherApplication
    dispatcher.get_backend_for_host = functools.lru_cache(dispatcher.get_backend_for_host)
    moto_responses.method_names_from_class = functools.cache(moto_responses.method_names_from_class)
    moto_core.TaggedEC2Resource.get_tags = _own_tags


def _own_tags(resource: Any) -> list[dict[str, str]]:
    """moto: goes through all tags of the region for the tags of one resource, so that a list of
    images costs the square of their number."""
    own = resource.ec2_backend.tags.get(resource.id) if resource.id else None
    if not own:
        return []
    kind = EC2_PREFIX_TO_RESOURCE.get(get_prefix(resource.id), "")
    return [
        {"resource_id": resource.id, "key": key, "value": value, "resource_type": kind}
        for key, value in list(own.items())
    ]


def _load_policies_when_asked() -> None:
    """moto: AWS's own policies, some 1,600, are parsed and written again by the first request,
    whatever it asks for: half a second in each lab."""
    backend, lock = moto_iam.IAMBackend, threading.Lock()
    load = backend._init_aws_policies

    def policies(self: Any) -> dict[str, Any]:
        with lock:
            if "kiln_policies" not in self.__dict__:
                self.kiln_policies = {policy.arn: policy for policy in load(self)}
            loaded: dict[str, Any] = self.kiln_policies
            return loaded

    backend._init_aws_policies = lambda self: []
    backend.managed_policies = property(policies, lambda self, none: None)


def _deleted_with_instance(attachment: Any) -> bool:
    device = attachment.instance.block_device_mapping.get(attachment.device)
    return bool(device and device.delete_on_termination)


def _asked_volumes(response: Any) -> list[dict[str, Any]]:
    return list(response._get_param("BlockDeviceMappings", []))
