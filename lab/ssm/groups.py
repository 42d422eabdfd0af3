"""Targets by resource group: the instances whose tags a group's query asks for.

https://docs.aws.amazon.com/systems-manager/latest/userguide/send-commands-multiple.html
https://docs.aws.amazon.com/ARG/latest/APIReference/API_ResourceQuery.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.resourcegroups.models import resourcegroups_backends

from lab.ssm.errors import SsmError

PREFIX = "resource-groups:"
_INSTANCES = ("AWS::EC2::Instance", "AWS::AllSupported")


def has(region: str, target: Mapping[str, Any], tags: Mapping[str, str]) -> bool:
    """Whether an instance with these tags is in a target. Raises SsmError."""
    key, values = str(target["Key"]).removeprefix(PREFIX), list(target["Values"])
    if key == "ResourceTypeFilters":
        return bool(set(values) & set(_INSTANCES))
    if key != "Name" or len(values) != 1:
        raise SsmError("InvalidTarget", f"the target {target['Key']} is not valid")
    group = resourcegroups_backends[DEFAULT_ACCOUNT_ID][region].groups.by_name.get(values[0])
    if group is None:
        raise SsmError("InvalidTarget", f"there is no resource group {values[0]}")
    query = group.resource_query
    if query["Type"] != "TAG_FILTERS_1_0":
        raise SsmError(
            "UnsupportedOperation", f"AMI Kiln lab: groups by {query['Type']} are not implemented"
        )
    request = json.loads(query["Query"])
    return bool(set(request["ResourceTypeFilters"]) & set(_INSTANCES)) and all(
        filter_["Key"] in tags
        and (not filter_.get("Values") or tags[filter_["Key"]] in filter_["Values"])
        for filter_ in request.get("TagFilters", [])
    )
