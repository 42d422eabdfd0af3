"""EC2: what stands between a parsed call and its answer, and between what it makes and machines.

Ids are checked, filters and pages evaluated, and the lab's own handlers (`calls`) called where
there are any.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import moto.ec2.models.amis as moto_amis
import moto.ec2.models.fleets as moto_fleets
import moto.ec2.models.spot_requests as moto_spot
import moto.ec2.urls as moto_urls
from moto.core.responses import ActionResult, EmptyResult
from moto.core.utils import camelcase_to_underscores
from moto.ec2.exceptions import DryRunClientError
from moto.ec2.models import EC2Backend
from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix

from lab.moto.ec2 import (  # noqa: F401 - their handlers are registered when they are imported
    calls,
    consistency,
    consoles,
    filters,
    ids,
    image_reports,
    images,
    imaging,
    instance_profiles,
    instances,
    known_images,
    launch,
    launch_templates,
    pages,
    snapshots,
    tokens,
    volumes,
)
from lab.moto.instances import LabInstance

Method = Callable[[Any], Any]
# moto's makes an AMI of nothing, and keeps an association's id.
_REFUSED = ("RegisterImage", "ReplaceIamInstanceProfileAssociation")
# They may change what outlives the lab's process.
_CHANGES_IMAGES = re.compile("^(Create|Delete)Tags$|Image|SnapshotAttribute")


class LabEC2(EC2Backend):  # type: ignore[misc]
    """EC2 of an account's region, with the lab's machines and AMIs."""

    _url_module = moto_urls

    @property
    def url_paths(self) -> dict[str, Any]:
        """The paths that the lab's class of answers has."""
        return {"/": LabEC2Response.dispatch}

    def run_instances(self, image_id: str, *arguments: Any, **named: Any) -> Any:
        """Launch, for every call that launches, with what EC2 checks and fills in."""
        return launch.run(self, super().run_instances, image_id, *arguments, **named)

    def deregister_image(self, ami_id: str) -> None:
        """Delete an AMI, and its disk unless another AMI or an instance uses it."""
        super().deregister_image(ami_id)
        known_images.forget(ami_id)

    def _load_amis(self) -> None:
        super()._load_amis()
        for image in LabInstance.machines.public.values():
            ami = self.amis[image.id]
            ami.deprecation_time = image.deprecated
            # moto: 15 GiB.
            ami.ebs_snapshot.volume.size = image.disk
        known_images.restore(self)

    def describe_tags(self, filters: dict[str, list[str]] | None = None) -> list[dict[str, str]]:
        """List tags. Those of one resource are looked up: moto goes through all of the region, so
        that a list of images costs the square of their number."""
        if not (filters and list(filters) == ["resource-id"] and len(filters["resource-id"]) == 1):
            listed: list[dict[str, str]] = super().describe_tags(filters)
            return listed
        (resource_id,) = filters["resource-id"]
        kind = EC2_PREFIX_TO_RESOURCE.get(get_prefix(resource_id), "")
        return [
            {"resource_id": resource_id, "key": key, "value": value, "resource_type": kind}
            for key, value in list(self.tags.get(resource_id, {}).items())
        ]

    def describe_volumes(self, *arguments: Any, **named: Any) -> list[Any]:
        """List volumes; moto shows no DeleteOnTermination."""
        listed: list[Any] = super().describe_volumes(*arguments, **named)
        for attached in [volume.attachment for volume in listed if volume.attachment]:
            device = attached.instance.block_device_mapping.get(attached.device)
            attached.delete_on_termination = bool(device and device.delete_on_termination)
        return listed

    def associate_iam_instance_profile(
        self,
        instance_id: str,
        iam_instance_profile_name: str | None = None,
        iam_instance_profile_arn: str | None = None,
    ) -> Any:
        """Give an instance a profile; EC2's error for an unknown one."""
        names = (iam_instance_profile_name, iam_instance_profile_arn)
        instance_profiles.require(self, *names)
        return super().associate_iam_instance_profile(instance_id, *names)


class LabAmi(moto_amis.Ami):  # type: ignore[misc]
    """An AMI. Each of the lab is Linux with ENA, and has the disks that the lab keeps of it.

    UsageOperation of Linux: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-info-fields.html
    """

    ena_support = True
    sriov_net_support = "simple"
    platform_details = "Linux/UNIX"
    usage_operation = "RunInstances"

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        """The disks as DescribeImages shows them."""
        return known_images.block_device_mappings(self)


class LabFleet(moto_fleets.Fleet):  # type: ignore[misc]
    """A fleet, as Packer asks for one: of Spot instances."""

    def create_on_demand_requests(self, weight_to_add: float) -> None:
        """Refuse: moto drops much of the template."""
        raise calls.error("UnsupportedOperation", "AMI Kiln lab: fleets are of Spot instances")


class LabSpotRequest(moto_spot.SpotInstanceRequest):  # type: ignore[misc]
    """A Spot request, whose instance is launched from its fleet's template."""

    def launch_instance(self) -> Any:
        """Launch; moto drops much of the template, and the request's id."""
        return instances.launch_spot(self)


def method_name(call: str) -> str:
    """Return the name of moto's method for a call."""
    return str(camelcase_to_underscores(call))


def _answering(call: str, moto: Method | None) -> Method:
    """Return the method that answers a call, from moto's own (None where it has none)."""
    own = calls.OWN.get(call)

    @functools.wraps(moto or _not_implemented)
    def answer(response: Any) -> Any:
        parameters = dict(response.params or {})
        ids.check(call, parameters)
        ids.check_tags(parameters)
        consistency.require_known(parameters)
        chosen = parameters.get("Filters") or parameters.get("Filter") or []
        if chosen:
            filters.check(call, chosen)
        pages.check(call, parameters)
        return tokens.once(
            call, parameters, response.ec2_backend, lambda: worked_out(response, parameters, chosen)
        )

    def worked_out(response: Any, parameters: dict[str, Any], chosen: list[dict[str, Any]]) -> Any:
        answer = answered(response, parameters)
        if _CHANGES_IMAGES.search(call) and not call.startswith("Describe"):
            known_images.remember(response.ec2_backend)
        if isinstance(answer, ActionResult):
            consistency.note(call, answer.result)
        if isinstance(answer, ActionResult) and isinstance(answer.result, dict):
            consistency.hide(call, answer.result)
            if chosen and call in filters.LISTS and call != "DescribeImages":
                _filter(call, answer.result, chosen)
            return ActionResult(pages.cut(call, answer.result, parameters))
        return answer

    def answered(response: Any, parameters: dict[str, Any]) -> Any:
        if own:
            if parameters.get("DryRun") and not own.tries:
                raise DryRunClientError
            request = calls.Request(call, parameters, response.ec2_backend, response, moto)
            result = own.handler(request)
            return EmptyResult() if result is None else ActionResult(result)
        if moto:
            return _moto_answer(call, moto, response, parameters)
        raise NotImplementedError(call)

    return answer


def _not_implemented(response: Any) -> Any:
    raise NotImplementedError


def _moto_answer(call: str, moto: Method, response: Any, parameters: dict[str, Any]) -> Any:
    """moto's answer, whole: without the page, and the filters that the lab evaluates."""
    hidden = {"MaxResults", "NextToken"} if pages.result_key(call) else set()
    if call in filters.LISTS:
        hidden |= {"Filters"}
    whole = response.params
    response.params = {name: parameters[name] for name in parameters if name not in hidden}
    if call == "DescribeInstances":
        # moto's own limit is 100.
        response.params["MaxResults"] = 1 << 30
    try:
        return moto(response)
    finally:
        response.params = whole


def _filter(call: str, result: dict[str, Any], chosen: list[dict[str, Any]]) -> None:
    key = filters.LISTS[call].partition(".")[0]
    if call == "DescribeInstances":
        result[key] = filters.keep_instances(result[key], chosen)
    else:
        result[key] = filters.keep(call, result[key], chosen)


def _asked_volumes(response: Any) -> list[dict[str, Any]]:
    """The volumes of a launch as it asks for them: `launch` completes them from the AMI."""
    return list(response._get_param("BlockDeviceMappings", []))


def _methods() -> dict[str, Method]:
    """The methods of all calls of EC2 that moto or the lab answers."""
    made: dict[str, Method] = {"_parse_block_device_mapping": _asked_volumes}
    for call in filters.model().operation_names:
        name = method_name(call)
        moto = None if call in _REFUSED else getattr(EC2Response, name, None)
        if moto or call in _REFUSED or call in calls.OWN:
            made[name] = _answering(call, moto)
    return made


LabEC2Response: Any = type("LabEC2Response", (EC2Response,), _methods())
