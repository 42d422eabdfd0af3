"""Which host names lead from a guest to the lab instead of AWS."""

from __future__ import annotations

import pytest

from lab.machine import endpoints


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("ssm.us-east-1.amazonaws.com", True),
        ("ec2messages.us-gov-west-1.amazonaws.com", True),
        ("logs.eu-central-1.api.aws", True),
        ("sts.amazonaws.com", True),
        ("s3.eu-west-1.amazonaws.com", True),
        ("of-the-lab.s3.eu-west-1.amazonaws.com", True),
        ("of-the-lab.s3.amazonaws.com", True),
        # Anybody's bucket: a download from there must work as without the lab.
        ("amazon-ssm-us-east-1.s3.us-east-1.amazonaws.com", False),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com", False),
        ("my-lb-1.us-east-1.elb.amazonaws.com", False),
        ("ssm.us-east-1.amazonaws.com.example.net", False),
        ("docs.aws.amazon.com", False),
    ],
)
def test_endpoints_lead_here_and_other_names_of_aws_do_not(name: str, here: bool) -> None:
    assert endpoints.is_here(name, "of-the-lab".__eq__) is here
