"""What a target is: a region of EC2 in which AMIs are built and checked.

`Target` is a region of AWS. The lab (`lab/target.py`) is a subclass of it, with hooks of its own;
`kiln/cli/targets.py` chooses between them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

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
class PackerInputs:
    """What Packer gets besides a recipe's HCL: variable files, and the whole environment."""

    var_files: tuple[Path, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class OwnKernel:
    """Asks for an instance that boots its AMI's own kernel; `keep`: where to keep its disk."""

    keep: Path | None = None


@dataclass(frozen=True)
class OwnBoot:
    """How such an instance is launched: with these tags; `how` says what boots it, for records."""

    tags: Mapping[str, str]
    how: str


class Hooks:
    """What a target does around builds. AWS has nothing to do, and this is what it does."""

    def batches(self, recipes: Sequence[Recipe], say: Callable[[str], None]) -> list[list[Recipe]]:
        """Group recipes that are prepared and built together, in order."""
        return [list(recipes)]

    def prepare(
        self, recipes: Sequence[Recipe], progress: Progress, *, install: bool, own_kernel: bool
    ) -> None:
        """Start the target and make what builds of these recipes will use. `install`: also this
        machine's missing packages; `own_kernel`: also for instances that boot their own kernel."""

    def emulate(self, arch: str, progress: Progress, *, install: bool) -> None:
        """Make what instances of `arch` need on this machine, known when EC2 names the AMI."""

    def preparing(self, what: Sequence[str]) -> AbstractContextManager[None]:
        """While inside, this process works on the target, or is about to: on these rows or AMIs."""
        return nullcontext()

    def in_use(self, run_id: str, recipe: str) -> AbstractContextManager[None]:
        """While inside, this process's run of a recipe uses the target."""
        return nullcontext()

    def gone(self) -> str:
        """Why the target can never answer again, in words; empty as long as it may."""
        return ""

    def emulates(self, arch: str) -> str | None:
        """What emulates a processor of `arch`, in a few words; None if it is native."""
        return None

    def parent(self, recipe: Recipe) -> ParentAmi | None:
        """The parent AMI if it is known without asking EC2."""
        return None

    def require_own_kernel(self, recipe: Recipe | None) -> None:
        """Refuse a recipe (None: unknown) whose AMI cannot boot its own kernel on request."""
        raise KilnError(
            "every instance in AWS boots its AMI's own kernel", hint="leave out --own-kernel"
        )

    def own_kernel(self, ami_id: str, wanted: OwnKernel) -> AbstractContextManager[OwnBoot]:
        """While inside, instances of the AMI that have the tags boot its own kernel.

        Never called in AWS: `require_own_kernel` refuses first.
        """
        raise NotImplementedError

    def packer_inputs(self, folder: Path, recipe: Recipe) -> PackerInputs:
        """What Packer needs to build the recipe; variable files are written to `folder`."""
        return PackerInputs((), dict(os.environ))

    def about_failure(self, missing: Sequence[str], recipe: Recipe) -> tuple[str, ...]:
        """What the target knows about a component that failed, for messages. `missing`: the
        packages that the package tool did not find."""
        return ()


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
    # Whose hosts its instances talk to.
    vendors = "real"

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

    @property
    def image_note(self) -> str:
        """What readers of a record must know about its AMIs."""
        return ""

    @property
    def own_cidr(self) -> str | None:
        """The address, as a /32, under which all instances see this machine, if there is one."""
        return None

    @property
    def hooks(self) -> Hooks:
        """What the pipeline calls around builds."""
        return Hooks()

    def client_settings(self) -> Mapping[str, str]:
        """The arguments of `create_client` besides the region: endpoint, keys. AWS needs none."""
        return {}

    def in_region(self, region: str) -> Target:
        """The same target in another region, which AWS may have though boto3 does not know it."""
        return replace(self, region=region)

    def identified(self) -> Target:
        """The target with its account known, for which AWS is asked."""
        return replace(self, account=aws.account(self))
