"""What cannot be made here: exports, conversions, fast launch.

The calls that would make one are refused, so the lists are empty, as in an account that made none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moto.ec2.exceptions import EC2ClientError

from lab.ec2.calls import BOOKED, Request, call, error

_LISTS = {
    "DescribeBundleTasks": "BundleTasks",
    "DescribeConversionTasks": "ConversionTasks",
    "DescribeExportImageTasks": "ExportImageTasks",
    "DescribeExportTasks": "ExportTasks",
    "DescribeFastLaunchImages": "FastLaunchImages",
    "DescribeFastSnapshotRestores": "FastSnapshotRestores",
    "DescribeReplaceRootVolumeTasks": "ReplaceRootVolumeTasks",
}
# A task that is asked for by its id does not exist.
_IDS = ("BundleIds", "ConversionTaskIds", "ExportImageTaskIds", "ExportTaskIds")


def _empty(key: str) -> Callable[[Request], dict[str, Any]]:
    def answer(request: Request) -> dict[str, Any]:
        parameters = [entry for name in _IDS for entry in request.parameters.get(name) or []]
        if parameters:
            raise error("InvalidParameterValue", f"The task {parameters[0]} does not exist")
        return {key: []}

    return answer


for _name, _key in _LISTS.items():
    call(_name, BOOKED)(_empty(_key))

# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_EnableFastLaunch.html
_FEWEST_LAUNCHES = 6


@call("EnableFastLaunch")
def _enable_fast_launch(request: Request) -> dict[str, Any]:
    if (request.parameters.get("MaxParallelLaunches") or _FEWEST_LAUNCHES) < _FEWEST_LAUNCHES:
        raise error("InvalidParameterValue", f"MaxParallelLaunches is {_FEWEST_LAUNCHES} or more")
    raise _not_windows(request)


@call("DisableFastLaunch")
def _disable_fast_launch(request: Request) -> dict[str, Any]:
    raise _not_windows(request)


def _not_windows(request: Request) -> EC2ClientError:
    """EC2 does this for Windows alone, and the lab has no AMI of it. The code is not confirmed."""
    image_id = request.parameters["ImageId"]
    (image,) = request.backend.describe_images(ami_ids=[image_id])
    return error("InvalidParameterValue", f"The image {image.id} is not a Windows AMI")
