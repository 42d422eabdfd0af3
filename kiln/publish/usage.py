"""Who uses a shared AMI in other accounts, by EC2's usage reports.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/your-ec2-ami-usage.html
"""

from __future__ import annotations

from datetime import timedelta

from kiln.base.times import utc_now
from kiln.cloud import aws
from kiln.cloud.target import Target

# An older report is of another day, and is asked for again.
_FRESH = timedelta(days=2)
_KINDS = ("ec2:Instance", "ec2:LaunchTemplate")


def used_elsewhere(target: Target, image_id: str, *, ask: bool) -> str:
    """Why a shared AMI must stay: who uses it by a fresh usage report, or that there is none yet;
    "" if the report names nobody. With `ask` a missing report is asked for.

    Raises KilnError (exit status 1) if EC2 refuses.
    """
    ec2 = aws.ec2(target)
    with aws.explained(f"who uses {image_id} could not be asked in {target.region}"):
        reports = ec2.describe_image_usage_reports(ImageIds=[image_id])["ImageUsageReports"]
        since = utc_now() - _FRESH
        fresh = [report for report in reports if report["CreationTime"] > since]
        ready = [report for report in fresh if report["State"] == "available"]
        if not ready:
            if ask and not fresh:
                ec2.create_image_usage_report(
                    ImageId=image_id, ResourceTypes=[{"ResourceType": kind} for kind in _KINDS]
                )
            if ask or fresh:
                return "shared: EC2 makes a report of its users; run retire again later"
            return "shared: who uses it is not known; --apply asks EC2 for a report"
        newest = max(ready, key=lambda report: report["CreationTime"])
        pages = ec2.get_paginator("describe_image_usage_report_entries")
        entries = [
            entry
            for page in pages.paginate(ReportIds=[newest["ReportId"]])
            for entry in page["ImageUsageReportEntries"]
            if entry["UsageCount"]
        ]
    users = [
        f"account {entry['AccountId']} ({entry['UsageCount']} {entry['ResourceType']})"
        for entry in entries
    ]
    return f"used by {', '.join(users[:3])}" if users else ""
