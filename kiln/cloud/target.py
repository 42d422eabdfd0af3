"""Where a build happens: in AWS, or in the lab on this machine."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from kiln.base.errors import KilnError, did_you_mean

DEFAULT_REGION = "us-east-1"
KINDS = ("auto", "aws", "lab")


@dataclass(frozen=True)
class Target:
    """AWS or the lab, and why it was chosen.

    `endpoint` is set for the lab alone, `account` for AWS alone, once it was asked for.
    """

    kind: str
    why: str
    region: str
    endpoint: str | None = None
    account: str | None = None

    @property
    def place(self) -> str | None:
        """The account or the lab: what was made there is found nowhere else."""
        return self.endpoint or self.account

    def emulates(self, arch: str) -> str | None:
        """What stands in for a processor of `arch`, in a few words; None in AWS.

        In the lab it is None too on a machine of that kind.
        """
        from lab import emulation

        return emulation.by(arch) if self.kind == "lab" else None

    def __str__(self) -> str:
        if self.kind == "lab":
            return f"target: lab on this machine ({self.why}); nothing of this is in AWS"
        return f"target: AWS, region {self.region} ({self.why})"


def choose(wanted: str = "auto", region: str | None = None) -> Target:
    """The target for `--target`; `auto` is AWS when boto3 finds credentials, else the lab.

    Raises KilnError for an unknown target, and for `aws` without credentials.
    """
    from kiln.cloud import aws
    from kiln.matrix import flags
    from lab import settings

    if wanted not in KINDS:
        raise KilnError(f"--target {wanted} is not known", hint=did_you_mean(wanted, KINDS))
    flags.region(region)
    endpoint = settings.current().endpoint
    if wanted == "lab":
        with contextlib.suppress(KilnError):  # the user's AWS configuration is no concern of it
            region = region or _configured_region()
        return Target("lab", "--target lab", region or DEFAULT_REGION, endpoint)
    where = region or _configured_region()
    if os.environ.get("AWS_ENDPOINT_URL", "").rstrip("/") == endpoint:
        return Target("lab", "AWS_ENDPOINT_URL is the lab's", where, endpoint)
    method = aws.find_credentials()
    if method:
        return Target("aws", f"AWS credentials found: {method}", where)
    if wanted == "aws":
        raise KilnError(
            "--target aws, but boto3 finds no AWS credentials",
            hint="configure them (aws configure, aws sso login, AWS_PROFILE), or use --target lab",
        )
    return Target("lab", "no AWS credentials found", where, endpoint)


def _configured_region() -> str:
    """AWS_REGION and AWS_DEFAULT_REGION first, then the profile's region, then us-east-1."""
    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if named:
        return named
    import botocore.session
    from botocore.exceptions import BotoCoreError

    from kiln.cloud import aws

    try:
        return botocore.session.Session().get_config_variable("region") or DEFAULT_REGION
    except BotoCoreError as error:
        raise aws.bad_configuration(error) from None
