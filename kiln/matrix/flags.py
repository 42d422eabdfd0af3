"""Refuses flags that cannot be an AWS name or id, before any request is made."""

from __future__ import annotations

import re

from kiln import facts
from kiln.base import vocabulary
from kiln.base.errors import KilnError


def instance_type(flag: str, value: str | None) -> None:
    """Raises KilnError (exit status 2) if `value` cannot be an instance type, GPU or not."""
    if value is not None and not vocabulary.INSTANCE_TYPE.fits(value):
        shown = f"--{flag.replace('_', '-')} {value} is not an instance type such as g4dn.xlarge"
        try:
            facts.instance(value)
        except KilnError as error:
            raise KilnError(shown, hint=error.hint) from None


def subnet(value: str | None) -> None:
    """Raises KilnError (exit status 2) if `value` cannot be a subnet's id."""
    _like(r"subnet-[0-9a-f]{8,17}", "subnet-id", value, "a subnet's id such as subnet-0123456789ab")


def ami(value: str) -> None:
    """Raises KilnError (exit status 2) if `value` cannot be an AMI's id."""
    _like(r"ami-[0-9a-f]{8,17}", "ami", value, "an AMI's id such as ami-0123456789abcdef0")


def region(value: str | None) -> None:
    """Raises KilnError (exit status 2) if `value` cannot be a region."""
    _like(r"[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}", "region", value, "a region such as eu-central-1")


def _like(shape: str, flag: str, value: str | None, what: str) -> None:
    if value is not None and not re.fullmatch(shape, value):
        raise KilnError(f"--{flag} {value} is not {what}")
