"""MaxResults and NextToken, for every call that EC2's model says has pages.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Query-Requests.html#api-pagination
"""

from __future__ import annotations

import base64
import binascii
import functools
from typing import Any

import botocore.session
from moto.core.utils import get_value

from lab.moto.ec2.calls import error

# DescribeInstances takes 5 to 1000, the others of these 5 to 1000 too; both are in the reference.
_MOST = 1000
# Calls that refuse ids together with MaxResults.
_NOT_WITH_IDS = {
    "DescribeInstances": ("InstanceIds", "instancesSet"),
    "DescribeInstanceStatus": ("InstanceIds", "instancesSet"),
    "DescribeVolumes": ("VolumeIds", "volumesSet"),
    "DescribeSnapshots": ("SnapshotIds", "snapshotsSet"),
}


@functools.cache
def result_key(call: str) -> str | None:
    """The list that a call answers in pages; None where it has no pages."""
    model = botocore.session.get_session().get_component("data_loader")
    pages = model.load_service_model("ec2", "paginators-1")["pagination"]
    key = pages.get(call, {}).get("result_key")
    return key if isinstance(key, str) else None


def check(call: str, parameters: dict[str, Any]) -> None:
    """Raise EC2's error for a page that cannot be asked for."""
    most = parameters.get("MaxResults")
    ids, shown = _NOT_WITH_IDS.get(call, ("", ""))
    if most is not None and parameters.get(ids):
        raise error(
            "InvalidParameterCombination",
            f"The parameter {shown} cannot be used with the parameter maxResults",
        )
    if most is not None and int(most) < 1:
        raise error(
            "InvalidParameterValue", f"Value ( {most} ) for parameter maxResults is invalid"
        )
    if parameters.get("NextToken"):
        _start(str(parameters["NextToken"]))


def cut(call: str, result: Any, parameters: dict[str, Any]) -> Any:
    """The page of a whole result that was asked for."""
    key = result_key(call)
    things = get_value(result, key, None) if key else None
    if things is None or not isinstance(things, list):
        return result
    start = _start(str(parameters.get("NextToken") or ""))
    most = min(int(parameters.get("MaxResults") or _MOST), _MOST)
    end = start + most
    result[key] = things[start:end]
    if end < len(things):
        result["NextToken"] = base64.urlsafe_b64encode(f"kiln-lab {end}".encode()).decode()
    return result


def _start(token: str) -> int:
    if not token:
        return 0
    try:
        return int(base64.urlsafe_b64decode(token).decode().removeprefix("kiln-lab "))
    except (ValueError, binascii.Error):
        raise error(
            "InvalidPaginationToken", "The specified pagination token is invalid or has expired."
        ) from None
