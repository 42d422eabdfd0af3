"""AWS as a target of builds."""

from __future__ import annotations

import http.client
import ipaddress
import os
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.recipe import Recipe
from kiln.cloud import aws, network
from kiln.cloud.target import OwnBoot, OwnKernel, PackageArchive, PackerInputs, ParentAmi

# AWS's own "what is my address": https://checkip.amazonaws.com
_CHECK_IP = "https://checkip.amazonaws.com"


@dataclass(frozen=True)
class AwsTarget:
    """A region of AWS, reached with the credentials that boto3 finds. See `Target`."""

    why: str
    region: str
    account: str | None = None

    kind = "aws"
    image_note = ""
    vendors = "real"
    bills = True
    poll_seconds = 2.0
    # As botocore's waiters: EC2 throttles an account whose builds ask more often.
    wait_seconds = 15.0
    missing_parent_hint = ""
    preparation = None

    def __str__(self) -> str:
        return f"target: AWS, region {self.region} ({self.why})"

    @property
    def place(self) -> str | None:
        """See `Target`."""
        return self.account

    @property
    def where(self) -> str:
        """See `Target`."""
        return f"AWS, account {self.account}, region {self.region}"

    def client_settings(self) -> Mapping[str, str]:
        """See `Target`: boto3's own configuration decides."""
        return {}

    def check_region(self, name: str, called: str) -> None:
        """See `Target`: AWS may have a region that boto3 here does not know yet."""

    def in_region(self, region: str) -> AwsTarget:
        """See `Target`."""
        return replace(self, region=region)

    def identified(self) -> AwsTarget:
        """See `Target`."""
        return replace(self, account=aws.account(self))

    def emulates(self, arch: str) -> str | None:
        """See `Target`: AWS has instances of each architecture."""
        return None

    def check_host(self) -> None:
        """See `Target`: this machine needs nothing special."""

    def host_packages(self, arches: Sequence[str]) -> tuple[str, ...]:
        """See `Target`."""
        return ()

    def in_use(self, run_id: str, recipe: str) -> AbstractContextManager[None]:
        """See `Target`: AWS need not know."""
        return nullcontext()

    def preparing(self, what: Sequence[str]) -> AbstractContextManager[None]:
        """See `Target`: AWS need not know."""
        return nullcontext()

    def gone(self) -> str:
        """See `Target`: a lost connection may come back."""
        return ""

    def prepare(self, recipes: Sequence[Recipe], say: Callable[[str], None]) -> AwsTarget:
        """See `Target`: there is nothing to prepare."""
        return self

    def parent_without_request(self, recipe: Recipe) -> ParentAmi | None:
        """See `Target`."""
        return None

    def check_own_kernel(self, recipe: Mapping[str, Any]) -> None:
        """Raises KilnError (exit status 2): see `Target`; there is no other kernel to boot."""
        raise KilnError(
            "every instance in AWS boots its AMI's own kernel",
            hint="leave out --own-kernel, which is for the lab (--target lab)",
        )

    def own_kernel(self, ami_id: str, wanted: OwnKernel) -> AbstractContextManager[OwnBoot]:
        """See `Target`: `check_own_kernel` has refused."""
        raise NotImplementedError

    def about_failure(self, missing: Sequence[str], recipe: Recipe) -> tuple[str, ...]:
        """See `Target`: the vendors' own repositories were asked, so there is nothing to add."""
        return ()

    def archive_of(self, recipe: Recipe) -> PackageArchive:
        """See `Target`: the distribution's, by the mirrors that the row's settings name."""
        mirrors = tuple(recipe.row.account.mirrors.items())
        return PackageArchive(recipe.distro.id, recipe.arch, mirrors)

    def own_cidr(self, block: str | None = None) -> str:
        """See `Target`: asks AWS, for a private network this machine's routes."""
        if block is not None:
            return f"{network.address_towards(block)}/32"
        try:
            with urllib.request.urlopen(_CHECK_IP, timeout=10) as answer:
                return f"{ipaddress.ip_address(answer.read().decode().strip())}/32"
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise operation_failed(
                f"this machine's public address is unknown ({_CHECK_IP}: {error})",
                hint="SSH is opened to this address only, never to 0.0.0.0/0",
            ) from None

    def packer_inputs(self, folder: Path, recipe: Recipe) -> PackerInputs:
        """See `Target`: only the user's own environment."""
        return PackerInputs((), dict(os.environ))
