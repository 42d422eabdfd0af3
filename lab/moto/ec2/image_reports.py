"""Usage reports of AMIs.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/your-ec2-ami-usage.html
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from moto.core.utils import utcnow

from lab.moto.ec2 import images
from lab.moto.ec2.calls import Request, call, error

# Reports end 30 days after they are made.
_LASTS = timedelta(days=30)


def _reports_of(backend: Any) -> dict[str, dict[str, Any]]:
    reports: dict[str, dict[str, Any]] = backend.__dict__.setdefault("kiln_reports", {})
    return reports


def _users(request: Request, image_id: str, kind: str) -> Iterator[str]:
    """The ARNs of the account's resources of a kind that name an AMI."""
    backend = request.backend
    begin = f"arn:aws:ec2:{request.region}:{request.account}"
    if kind == "ec2:Instance":
        for instance in backend.all_instances():
            if instance.image_id == image_id and instance.state != "terminated":
                yield f"{begin}:instance/{instance.id}"
    if kind == "ec2:LaunchTemplate":
        for template in backend.launch_templates.values():
            # The reference: the latest 20 versions, when no number is given.
            if any(version.data.get("ImageId") == image_id for version in template.versions[-20:]):
                yield f"{begin}:launch-template/{template.id}"


@call("CreateImageUsageReport")
def _create(request: Request) -> dict[str, Any]:
    parameters = request.parameters
    ami = images.own(request.backend, parameters["ImageId"])
    kinds = parameters["ResourceTypes"]
    _refuse(request, "AccountIds", "TagSpecifications")
    now = utcnow()
    report = f"amiur-{secrets.token_hex(17)[:17]}"
    _reports_of(request.backend)[report] = {
        "ReportId": report,
        "ImageId": ami.id,
        "ResourceTypes": kinds,
        "AccountIds": [],
        "State": "available",
        "CreationTime": now,
        "ExpirationTime": now + _LASTS,
        # What the report counted, when it was made.
        "entries": [
            {"ResourceType": kind, "UsageCount": count}
            for kind in (kind["ResourceType"] for kind in kinds)
            if (count := len(list(_users(request, ami.id, kind))))
        ],
    }
    return {"ReportId": report}


@call("DescribeImageUsageReports")
def _reports(request: Request) -> dict[str, Any]:
    return {"ImageUsageReports": _chosen(request)}


@call("DescribeImageUsageReportEntries")
def _entries(request: Request) -> dict[str, Any]:
    entries = [
        {
            **entry,
            "ReportId": report["ReportId"],
            "ImageId": report["ImageId"],
            "AccountId": request.account,
            "ReportCreationTime": report["CreationTime"],
        }
        for report in _chosen(request)
        for entry in report["entries"]
    ]
    return {"ImageUsageReportEntries": entries}


def _chosen(request: Request) -> list[dict[str, Any]]:
    _refuse(request, "Filters")
    reports, parameters = _reports_of(request.backend), request.parameters
    wanted = parameters.get("ReportIds") or list(reports)
    for report in wanted:
        if report not in reports:
            # The code is assumed: the reference names none.
            text = f"The report '{report}' does not exist"
            raise error("InvalidImageUsageReportId.NotFound", text)
    ids = parameters.get("ImageIds")
    return [reports[report] for report in wanted if not ids or reports[report]["ImageId"] in ids]


def _refuse(request: Request, *names: str) -> None:
    for name in names:
        if request.parameters.get(name):
            text = f"AMI Kiln lab: {request.call} has no {name}"
            raise error("UnsupportedOperation", text)
