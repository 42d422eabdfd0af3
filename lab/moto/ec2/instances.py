"""Corrections of moto's calls about instances, their volumes, spot requests and fleets.

Seen in moto 5.2.5.
"""

from __future__ import annotations

from typing import Any

from lab.moto.ec2.calls import Request, call, error

# Options of the metadata service, and where moto keeps them.
_OPTIONS = {
    "HttpTokens": "http_tokens",
    "HttpPutResponseHopLimit": "http_put_response_hop_limit",
    "HttpEndpoint": "http_endpoint",
    "HttpProtocolIpv6": "http_protocol_ipv6",
    "InstanceMetadataTags": "instance_metadata_tags",
}


@call("ModifyInstanceMetadataOptions")
def _modify_metadata(request: Request) -> dict[str, Any]:
    """moto forgets the options that a call does not name.

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifyInstanceMetadataOptions.html
    """
    instance = request.backend.get_instance(request.parameters.get("InstanceId"))
    options = {name: request.parameters[name] for name in _OPTIONS if name in request.parameters}
    hops = options.get("HttpPutResponseHopLimit", 1)
    if not 1 <= int(hops) <= 64:
        raise error("InvalidParameterValue", f"The hop limit must be from 1 to 64, and is {hops}")
    for name, value in options.items():
        setattr(instance.metadata_options, _OPTIONS[name], value)
    shown = {name: getattr(instance.metadata_options, kept) for name, kept in _OPTIONS.items()}
    return {"InstanceId": instance.id, "InstanceMetadataOptions": shown | {"State": "pending"}}


@call("DeleteSecurityGroup", tries=True)
def _delete_group(request: Request) -> Any:
    """moto deletes the default group, and groups that instances have.

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DeleteSecurityGroup.html
    """
    backend, parameters = request.backend, request.parameters
    group_id, name = parameters.get("GroupId"), parameters.get("GroupName")
    sg = backend.get_security_group_by_name_or_id(group_id or name)
    if sg and sg.name == "default":
        raise error(
            "CannotDelete",
            f'the specified group: "{sg.id}" name: "default" cannot be deleted by a user',
        )
    for instance in backend.all_instances() if sg else []:
        groups = [*instance.security_groups, *(instance.nics[0].group_set if instance.nics else [])]
        if instance.state != "terminated" and sg.id in {group.id for group in groups}:
            raise error("DependencyViolation", f"resource {sg.id} has a dependent object")
    return request.moto_answer().result


def launch_spot(spot: Any) -> Any:
    """Instead of moto's SpotInstanceRequest.launch_instance, which drops much of a template."""
    parameters = spot.launch_specification
    template = spot.launch_spec.launch_template_spec if spot.launch_spec else None
    reservation = spot.ec2_backend.run_instances(
        image_id=parameters.image_id,
        count=1,
        user_data=spot.user_data,
        instance_type=parameters.instance_type,
        is_instance_type_default=not parameters.instance_type,
        subnet_id=parameters.subnet_id,
        key_name=parameters.key_name,
        security_group_names=[],
        # A request without groups has the default one; the template's go before it.
        security_group_ids=[] if template else parameters.groups,
        spot_fleet_id=spot.spot_fleet_id,
        tags=spot.all_tags,
        lifecycle="spot",
        launch_template=template or {},
    )
    instance = reservation.instances[0]
    instance.spot_instance_request_id = spot.id
    return instance
