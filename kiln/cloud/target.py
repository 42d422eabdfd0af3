"""Targets: a target is a region of EC2 in which AMIs are built and checked.

`Target` is a region of AWS. The lab (`lab/target.py`) is a subclass of it, with hooks of its own;
`kiln/cli/targets.py` chooses between them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.cloud import aws

DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True)
class ParentAmi:
    """The parent AMI of a recipe as it is today, and how it was looked up."""

    ami_id: Annotated[str, vocabulary.AMI_ID]
    name: str
    created: str
    found_by: str


@dataclass(frozen=True)
class OwnKernel:
    """Asks for an instance that boots its AMI's own kernel; `keep`: where to keep its disk."""

    keep: Path | None = None


class Hooks:
    """Calls of the pipeline to a target around its runs. In AWS there is nothing to do."""

    @contextmanager
    def prepared(
        self,
        what: str,
        recipes: Sequence[Recipe],
        progress: Progress,
        *,
        own_kernel: OwnKernel | None = None,
        ami_id: str | None = None,
    ) -> Iterator[list[Recipe]]:
        """While inside, the target is up with what builds of these recipes or the verification of
        an AMI use, and this process works there on `what`. Yields the recipes in the order in which
        they are built. `own_kernel`: also for instances that boot their AMI's own kernel."""
        if own_kernel:
            raise KilnError(
                "every instance in AWS boots its AMI's own kernel", hint="leave out --own-kernel"
            )
        yield list(recipes)

    def in_use(self, run_id: str, what: str) -> AbstractContextManager[None]:
        """While inside, a run of this process uses the target."""
        return nullcontext()

    def gone(self) -> KilnError | None:
        """Return why the target can never answer again; None as long as it may."""
        return None

    def parent(self, recipe: Recipe) -> ParentAmi | None:
        """The parent AMI if it is known without asking EC2."""
        return None

    def missing(self, ami_ids: Collection[str]) -> set[str] | None:
        """Return those of the AMIs that are gone, if that is known without asking EC2."""
        return None

    def packer_inputs(self, folder: Path, recipe: Recipe) -> tuple[list[Path], dict[str, str]]:
        """The variable files, written to `folder`, and the whole environment that Packer gets
        besides the recipe's HCL."""
        return [], dict(os.environ)

    def about_failure(self, missing: Sequence[str], recipe: Recipe) -> tuple[str, ...]:
        """Return the target's hints about a component that failed. `missing`: the packages that the
        package tool did not find."""
        return ()

    def own_kernel(
        self, ami_id: str, recipe: Recipe, wanted: OwnKernel
    ) -> AbstractContextManager[tuple[dict[str, str], str]]:
        """While inside, instances of the AMI that have these tags boot its own kernel; with them
        what boots it, for records. Never called in AWS, where `prepared` refuses it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Target:
    """A region of AWS, reached with the credentials that boto3 finds.

    `why` says in a few words why it was chosen. `account` is known after `identified`.
    """

    why: str
    region: str = DEFAULT_REGION
    account: str | None = None

    # What records, tags and checks call it.
    kind = "aws"
    # Whether a launch costs money, so that a build must announce it.
    bills = True
    # Seconds between two questions about what takes seconds, and about what takes minutes. The
    # second is that of botocore's waiters: EC2 throttles an account that asks more often.
    poll_seconds = 2.0
    wait_seconds = 15.0

    def __str__(self) -> str:
        return f"target: AWS, region {self.region} ({self.why})"

    @property
    def place(self) -> str | None:
        """The account id: where a run's resources must be looked for."""
        return self.account

    @property
    def where(self) -> str:
        """The place and region in words."""
        return f"AWS, account {self.account}, region {self.region}"

    def record_fields(self, arch: str) -> dict[str, Any]:
        """The fields of a record that say where its run is, for AMIs of this arch."""
        return {"target": self.kind, "region": self.region, "vendors": "real"}

    @property
    def own_cidr(self) -> str | None:
        """The address, as a /32, under which all instances see this machine, if there is one."""
        return None

    @property
    def hooks(self) -> Hooks:
        """The calls of the pipeline around builds."""
        return Hooks()

    def client_settings(self) -> Mapping[str, str]:
        """The arguments of `create_client` besides the region: endpoint, keys. AWS needs none."""
        return {}

    def in_region(self, region: str) -> Target:
        """A copy of the target in another region; boto3 need not know the region."""
        return replace(self, region=region)

    def identified(self) -> Target:
        """The target with its account known, for which AWS is asked."""
        return replace(self, account=aws.account(self))
