"""Chooses between AWS and the lab. Only this module and the lab's own tasks (`lab.py` beside it)
import the lab."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

from kiln.base import vocabulary
from kiln.base.account import REGION_VARIABLES
from kiln.base.errors import KilnError, did_you_mean
from kiln.cloud import aws
from kiln.cloud.instance import Machine
from kiln.cloud.target import DEFAULT_REGION, Target
from kiln.matrix import load
from lab import settings
from lab import vendors as lab_vendors
from lab.target import LabTarget, is_guest

KINDS = ("auto", "aws", "lab")


def choose(wanted: str = "auto", region: str | None = None, vendors: str | None = None) -> Target:
    """The target for `--target`; `auto` is AWS if boto3 finds credentials, else the lab.

    `vendors`, of `--vendors`, says whose hosts the lab's guests talk to.
    Raises KilnError (exit status 2) for an unknown target, for `aws` without credentials, and for
    vendors that are unknown or that the target cannot have.
    """
    chosen = _place(wanted, region)
    if vendors is None:
        return chosen
    lab_vendors.vendor_kind(vendors, "--vendors")
    if isinstance(chosen, LabTarget):
        return replace(chosen, vendors=vendors)
    if vendors == lab_vendors.STAND_INS:
        raise KilnError("--vendors stand-ins: the stand-ins are the lab's", hint="add --target lab")
    return chosen  # AWS's instances talk to nobody else


def choose_aws(wanted: str, region: str | None, task: str) -> Target:
    """AWS, for a task that the lab cannot do.

    Raises KilnError (exit status 2) if `choose` finds the lab.
    """
    chosen = choose(wanted, region)
    if isinstance(chosen, LabTarget):
        raise KilnError(
            f"{task} needs an AWS account: the lab ({chosen.why}) has neither CloudFormation nor "
            "CodeBuild",
            hint="configure credentials (aws configure, aws sso login), and use --target aws",
        )
    return chosen


def kind_of_machine(machine: Machine) -> str:
    """The kind of target that a machine runs in, as the machine itself shows: it may be another one
    than what `choose` finds, which asks where this machine's credentials are for."""
    return (LabTarget if is_guest(machine.ssh) else Target).kind


def _place(wanted: str, region: str | None) -> Target:
    if wanted not in KINDS:
        raise KilnError(f"--target {wanted} is not known", hint=did_you_mean(wanted, KINDS))
    if region is not None:
        vocabulary.REGION.required(region, "--region")
    endpoint = settings.current().endpoint
    if wanted == "lab":
        why = "--target lab"
        if region is None:
            # The lab does not use the user's AWS configuration.
            with contextlib.suppress(KilnError):
                return _lab(why, *_configured_region(), endpoint)
        return _lab(why, region or DEFAULT_REGION, "--region", endpoint)
    where, called = (region, "--region") if region else _configured_region()
    if os.environ.get("AWS_ENDPOINT_URL", "").rstrip("/") == endpoint:
        return _lab("AWS_ENDPOINT_URL is the lab's", where, called, endpoint)
    method = aws.find_credentials()
    if method:
        return Target(f"AWS credentials found: {method}", where)
    if wanted == "aws":
        raise KilnError(
            "--target aws, but boto3 finds no AWS credentials",
            hint="configure them (aws configure, aws sso login, AWS_PROFILE), or use --target lab",
        )
    return _lab("no AWS credentials found", where, called, endpoint)


def _lab(why: str, region: str, called: str, endpoint: str) -> LabTarget:
    """The lab in a region, which `called` names."""
    try:
        return LabTarget(why, endpoint=endpoint).in_region(region)
    except KilnError as error:
        raise KilnError(f"{called}: {error.message}", hint=error.hint) from None


def _configured_region() -> tuple[str, str]:
    """A region and what names it: AWS_REGION and AWS_DEFAULT_REGION first, then that of `defaults`
    in the matrix, then the profile's region, then us-east-1.

    Raises KilnError (exit status 2) if the value cannot be a region.
    """
    for name in REGION_VARIABLES:
        if os.environ.get(name):
            return vocabulary.REGION.required(os.environ[name], name), name
    if ours := load.default_region():
        return ours, "the matrix's region"
    called = "the profile's region"
    profile = aws.profile_region()
    return (vocabulary.REGION.required(profile, called) if profile else DEFAULT_REGION), called
