"""Where a build happens: the protocol that AWS and the lab both implement.

`kiln/cloud/aws_target.py` is AWS, `lab/target.py` is the lab on this machine, and
`kiln/cli/targets.py` chooses between them. Nothing else in `kiln/` knows which of the two it has,
but the lab's own tasks (`kiln/cli/lab.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kiln.base.recipe import Recipe

DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True)
class ParentAmi:
    """The parent AMI of a recipe as it is today, and how it was looked up."""

    ami_id: str
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


@dataclass(frozen=True)
class PackageArchive:
    """Whose packages instances get: a distribution's (its id), for a processor by EC2's name, and
    the mirrors that they get them from (beginning of a URL, what takes its place)."""

    distro: str
    arch: str
    mirrors: tuple[tuple[str, str], ...] = ()


class Target(Protocol):
    """A place with an EC2 API in which AMIs are built and checked. Hashable and immutable."""

    def __hash__(self) -> int: ...

    @property
    def kind(self) -> str:
        """`aws` or `lab`: what records, tags and expectations call this target."""

    @property
    def why(self) -> str:
        """Why this target was chosen, in a few words, for messages."""

    @property
    def region(self) -> str:
        """The AWS region, also of the lab."""

    @property
    def place(self) -> str | None:
        """The account id or the lab's endpoint: where a run's resources must be looked for.

        None until `identified` has asked AWS for the account.
        """

    @property
    def where(self) -> str:
        """The place and region in words, for messages."""

    @property
    def image_note(self) -> str:
        """What readers of a record must know about AMIs of this target; empty for AWS."""

    @property
    def vendors(self) -> str:
        """Whose hosts its instances talk to: `real`, or the lab's `stand-ins`."""

    @property
    def bills(self) -> bool:
        """Whether a launch costs money, so that a build must announce it."""

    @property
    def poll_seconds(self) -> float:
        """Seconds between two requests while waiting for what EC2 does in seconds."""

    @property
    def wait_seconds(self) -> float:
        """The same for what takes minutes or hours."""

    @property
    def missing_parent_hint(self) -> str:
        """Another possible reason why a parent AMI is not found; may be empty."""

    def client_settings(self) -> Mapping[str, str]:
        """What botocore's `create_client` is given besides the region: endpoint, keys."""

    def check_region(self, name: str, called: str) -> None:
        """Raises KilnError (exit status 2) if there is known to be no such region here; `called`
        says where the name comes from."""

    def in_region(self, region: str) -> Target:
        """The same target in another region."""

    def identified(self) -> Target:
        """The target with `place` known. Raises KilnError (exit status 1) if AWS refuses."""

    def emulates(self, arch: str) -> str | None:
        """What emulates a processor of `arch` here, in a few words; None if it is native."""

    def check_host(self) -> None:
        """Raises KilnError (exit status 1) if this machine cannot run the target at all."""

    def host_packages(self, arches: Sequence[str]) -> tuple[str, ...]:
        """Groups of host-packages.yaml that guests of `arches` need besides Packer and SSH."""

    def in_use(self, run_id: str, recipe: str) -> AbstractContextManager[None]:
        """While inside, this process's run of a recipe uses the target."""

    def preparing(self, what: Sequence[str]) -> AbstractContextManager[None]:
        """While inside, this process works on the target, or is going to: on these recipes or
        AMIs."""

    def gone(self) -> str:
        """Why the target can never answer again, in words; empty as long as it may."""

    def prepare(self, recipes: Sequence[Recipe], say: Callable[[str], None]) -> Target:
        """Start the target and prepare in advance what builds of `recipes` will use.

        Returns the target with what is known of it from then on.
        Raises KilnError (exit status 1) if that fails, or if the disk is too full for it.
        """

    @property
    def preparation(self) -> str | None:
        """The name of the stage in which `prepare` runs; None if there is nothing to prepare."""

    def parent_without_request(self, recipe: Recipe) -> ParentAmi | None:
        """The parent AMI if it can be named without asking EC2; None means: ask EC2."""

    def check_own_kernel(self, recipe: Mapping[str, Any]) -> None:
        """Raises KilnError (exit status 2) if an AMI of this recipe cannot be booted on request
        with its own kernel here. `recipe` is a recipe as JSON.
        """

    def own_kernel(self, ami_id: str, wanted: OwnKernel) -> AbstractContextManager[OwnBoot]:
        """While inside, instances of the AMI that have the tags boot its own kernel.

        Raises KilnError (exit status 1) if that fails.
        """

    def about_failure(self, missing: Sequence[str], recipe: Recipe) -> tuple[str, ...]:
        """What this place knows of why a component of the recipe failed, for messages. `missing`:
        the packages that the package tool did not find."""

    def archive_of(self, recipe: Recipe) -> PackageArchive:
        """Whose packages a bake of the recipe gets besides the vendors': the distribution's own, or
        what stands in for it here."""

    def own_cidr(self, block: str | None = None) -> str:
        """The address, as a /32, that EC2 sees this machine under, or a private network's `block`:
        SSH is opened to it alone.

        Raises KilnError (exit status 1) if it cannot be determined, or if there is no way to it.
        """

    def packer_inputs(self, folder: Path, recipe: Recipe) -> PackerInputs:
        """What Packer needs to build `recipe` here; variable files are written to `folder`."""
