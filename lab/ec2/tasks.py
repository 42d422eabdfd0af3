"""Lists of what cannot be made here: exports, conversions, fast launch.

The calls that would make one are refused, so the lists are empty, as in an account that made none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
        asked = [entry for name in _IDS for entry in request.asked.get(name) or []]
        if asked:
            raise error("InvalidParameterValue", f"The task {asked[0]} does not exist")
        return {key: []}

    return answer


for _name, _key in _LISTS.items():
    call(_name, BOOKED)(_empty(_key))
