"""Which calls the lab answers, and what each does here: read from the code.

A call is *real* when what it does on EC2 happens here or decides what other calls answer, *booked
only* when moto keeps what it says and shows it again, *refused* when it is not implemented.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from lab.api import botocore_data

# moto's calls behind which the lab's machines, disks and metadata service stand. The lab's own
# calls say themselves what they are (`lab.ec2.calls.call`).
_THROUGH_MOTO = frozenset(
    [
        "CopyImage",
        "CreateFleet",
        "CreateImage",
        "CreateKeyPair",
        "CreateLaunchTemplate",
        "CreateVolume",
        "DeleteKeyPair",
        "DeleteLaunchTemplate",
        "DeleteTags",
        "DeleteVolume",
        "DescribeInstanceStatus",
        "DescribeInstances",
        "DescribeKeyPairs",
        "DescribeLaunchTemplateVersions",
        "DescribeLaunchTemplates",
        "DescribeTags",
        "DescribeVolumes",
        "ImportKeyPair",
        "ModifyLaunchTemplate",
        "RebootInstances",
        "RequestSpotInstances",
        "StartInstances",
        "StopInstances",
        "TerminateInstances",
    ]
)


@functools.cache
def table() -> dict[str, str]:
    """Every call of EC2's API (as the AWS SDK's model has it): real, booked only or refused.

    Calls of other services come after them as `service:Call`.
    """
    botocore_data.read_once()
    from moto.ec2.responses import EC2Response

    from lab.api import services
    from lab.ec2 import calls, filters, layer

    rows: dict[str, str] = {}
    for name in sorted(filters.model().operation_names):
        method = getattr(EC2Response, layer.method_name(name), None)
        if name in calls.OWN:
            rows[name] = calls.OWN[name].effect
        elif method is None or _only_refuses(method):
            rows[name] = "refused"
        else:
            rows[name] = "real" if name in _THROUGH_MOTO else "booked only"
    return rows | services.table()


def _only_refuses(method: Any) -> bool:
    """Whether a method of moto's only says that it is not implemented.

    Its compiled code tells: to find the source of 700 methods takes a second.
    """
    code = inspect.unwrap(method).__code__
    texts = [constant for constant in code.co_consts if isinstance(constant, str)]
    says_so = any("is not yet implemented" in text for text in texts)
    return says_so and "ActionResult" not in code.co_names


def text(rows: dict[str, str]) -> str:
    """The table for a terminal: a line per call, and the counts."""
    kinds = ("real", "booked only", "refused")
    lines = [f"{name:<60} {rows[name]}" for kind in kinds for name in rows if rows[name] == kind]
    return "\n".join([*lines, "", counts(rows)])


def counts(rows: dict[str, str]) -> str:
    """How many calls are of each kind."""
    kinds = list(rows.values())
    named = (f"{kinds.count(kind)} {kind}" for kind in ("real", "booked only", "refused"))
    return f"{len(kinds)} calls: {', '.join(named)}"


def page(rows: dict[str, str]) -> str:
    """The table as a page of the documentation."""
    real = [name for name in rows if rows[name] == "real"]
    booked = [name for name in rows if rows[name] == "booked only"]
    return "\n".join(
        [
            "# Calls in the lab",
            "",
            "Written by `./invoke generate` from the lab's code; `./invoke lab.coverage` prints it "
            "with the refused ones.",
            "",
            f"{counts(rows)}.",
            "",
            "A call without a service is EC2's. Of the services that are not here (IAM, S3, "
            "Auto Scaling, …) moto answers as it does.",
            "",
            "**Real**: what the call does on AWS happens in the lab, or decides what other calls "
            "answer.",
            "",
            ", ".join(f"`{name}`" for name in real),
            "",
            "**Booked only**: moto keeps what the call says and shows it again; nothing in a guest "
            "changes.",
            "",
            ", ".join(f"`{name}`" for name in booked),
            "",
            "**Refused**: all others, with an error of the service that names the call (EC2's is "
            "`UnsupportedOperation`).",
            "",
        ]
    )
