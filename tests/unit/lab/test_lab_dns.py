"""The guests' resolver: which names it never forwards, and how it answers them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.base.settings import Lab
from lab.machine import dns, endpoints


@pytest.mark.parametrize(
    ("name", "never"),
    [
        ("does-not-exist.example.com", True),
        ("example.invalid", True),
        ("instance-data", True),
        ("developer.download.nvidia.com.ec2.internal", True),
        ("9.1.201.10.in-addr.arpa", True),
        ("developer.download.nvidia.com", False),
        ("example.com.evil.net", False),
    ],
)
def test_reserved_names_are_never_asked_for(name: str, never: bool) -> None:
    assert bool(dns._NEVER.search(name)) is never


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("developer.download.nvidia.com", "10.204.0.1"),
        ("ssm.us-east-1.amazonaws.com", "10.204.0.1"),
        ("ip-10-204-1-2.ec2.internal", "10.204.1.2"),
        ("ip-10-204-1-2.eu-west-1.compute.internal", "10.204.1.2"),
        ("ec2-10-204-1-2.compute-1.amazonaws.com", "10.204.1.2"),
        ("ec2-10-204-1-2.eu-west-1.compute.amazonaws.com", "10.204.1.2"),
        # Another lab's, and one of EC2's.
        ("ip-10-201-1-2.ec2.internal", None),
        ("ec2-3-80-1-2.compute-1.amazonaws.com", None),
        ("deb.debian.org", None),
    ],
)
def test_names_that_lead_a_guest_to_the_lab(name: str, address: str):
    lab = Lab(index=3, root=Path("/unused"))
    known = dns.addresses(
        lab, ["developer.download.nvidia.com"], "ssm.us-east-1.amazonaws.com".__eq__
    )
    assert known(name) == address


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("ssm.us-east-1.amazonaws.com", True),
        ("ec2messages.us-gov-west-1.amazonaws.com", True),
        ("logs.eu-central-1.api.aws", True),
        ("sts.amazonaws.com", True),
        ("of-the-lab.s3.eu-west-1.amazonaws.com", True),
        # Anybody's bucket: a download from there must work as without the lab.
        ("amazon-ssm-us-east-1.s3.us-east-1.amazonaws.com", False),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com", False),
        ("ssm.us-east-1.amazonaws.com.example.net", False),
        ("docs.aws.amazon.com", False),
    ],
)
def test_endpoints_lead_here_and_other_names_of_aws_do_not(name: str, here: bool) -> None:
    assert endpoints.is_lab_endpoint(name, "of-the-lab".__eq__) is here
