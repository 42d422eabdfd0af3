"""Who uses an AMI: usage reports.

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
_KINDS = ("ec2:Instance", "ec2:LaunchTemplate")


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
    elif kind == "ec2:LaunchTemplate":
        for template in backend.launch_templates.values():
            # The reference: the latest 20 versions, when no number is given.
            if any(version.data.get("ImageId") == image_id for version in template.versions[-20:]):
                yield f"{begin}:launch-template/{template.id}"


@call("CreateImageUsageReport")
def _create(request: Request) -> dict[str, Any]:
    parameters = request.parameters
    ami = images.own(request.backend, parameters["ImageId"])
    kinds = parameters["ResourceTypes"]
    unknown = {kind.get("ResourceType") for kind in kinds} - set(_KINDS)
    if unknown:
        raise error("InvalidParameterValue", f"Unknown resource types: {sorted(map(str, unknown))}")
    now = utcnow()
    report = f"amiur-{secrets.token_hex(17)[:17]}"
    tags = [
        tag
        for specification in parameters.get("TagSpecifications") or []
        for tag in specification.get("Tags", [])
    ]
    _reports_of(request.backend)[report] = {
        "ReportId": report,
        "ImageId": ami.id,
        "ResourceTypes": kinds,
        "AccountIds": parameters.get("AccountIds") or [],
        "State": "available",
        "CreationTime": now,
        "ExpirationTime": now + _LASTS,
        "Tags": tags,
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
        if not report["AccountIds"] or request.account in report["AccountIds"]
    ]
    return {"ImageUsageReportEntries": entries}


def _chosen(request: Request) -> list[dict[str, Any]]:
    parameters = request.parameters
    if parameters.get("Filters"):
        raise error("UnsupportedOperation", f"AMI Kiln lab: {request.call} takes no filters")
    reports = _reports_of(request.backend)
    wanted = parameters.get("ReportIds") or []
    for report in wanted:
        _find(request, report)
    ids = parameters.get("ImageIds") or []
    return [
        report
        for report in reports.values()
        if (not wanted or report["ReportId"] in wanted) and (not ids or report["ImageId"] in ids)
    ]


def _find(request: Request, report: str) -> dict[str, Any]:
    kept = _reports_of(request.backend).get(report)
    if kept is None:
        # The code is assumed: the reference names none.
        raise error("InvalidImageUsageReportId.NotFound", f"The report '{report}' does not exist")
    return kept
