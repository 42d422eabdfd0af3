"""The model of `amis.yaml`: its schema, for the reader and for editors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, field_validator

from kiln.base import vocabulary
from kiln.base.account import (
    Account,
    Aws,
    Block,
    InstanceType,
    KmsKey,
    Region,
    key_elsewhere,
)
from kiln.base.errors import did_you_mean
from kiln.base.recipe import Acceptance, Kubernetes, Label, ParentImage, Release, Stack, Volume
from kiln.base.vocabulary import Arch, Family, Flavor, PackageManager
from kiln.telemetry.settings import Telemetry

Id = Annotated[str, vocabulary.ID]
ChannelName = Annotated[str, vocabulary.CHANNEL]


class Share(Block):
    """Accounts that may launch the AMIs besides their owner."""

    accounts: tuple[Annotated[str, vocabulary.ACCOUNT], ...] = ()
    """Account ids, in quotes; they may read the snapshots as well."""
    organizations: tuple[Annotated[str, vocabulary.ORGANIZATION], ...] = ()
    """ARNs of organizations."""
    organizational_units: tuple[Annotated[str, vocabulary.ORGANIZATIONAL_UNIT], ...] = ()
    """ARNs of organizational units."""


class LaunchTemplate(Block):
    """A launch template whose default version follows a channel."""

    name: Annotated[str, vocabulary.LAUNCH_TEMPLATE]
    """The template's name."""
    channel: ChannelName
    """The channel that its default version follows."""
    regions: tuple[Region, ...] = ()
    """Regions of the template; empty: every region of `publish`."""


class Sign(Block):
    """The key that signs where each published AMI comes from: one of the two."""

    kms_key: KmsKey | None = None
    """A KMS key for SIGN_VERIFY in the region that bakes."""
    key_file: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """A private ed25519 key in PEM, relative to amis.yaml; to promote, the public one is enough."""


Days = Annotated[int, Field(ge=1, le=3650)]


class Publish(Block):
    """Regions, users and lifetime of a row's AMIs."""

    regions: tuple[Region, ...] = ()
    """Regions that get a copy, besides the region that bakes."""
    share: Share = Share()
    """Other accounts and organizations that may launch the AMIs."""
    kms_keys: dict[Region, KmsKey] = {}
    """KMS key that encrypts the AMI, per region."""
    channels: tuple[ChannelName, ...] = Field(("nightly", "candidate", "stable"), min_length=1)
    """Channels, in the order in which a release is promoted."""
    launch_templates: tuple[LaunchTemplate, ...] = ()
    """Launch templates whose default version follows a channel."""
    sign: Sign | None = None
    """Sign a statement of where each published AMI comes from; an unsigned one is not promoted."""
    keep: dict[ChannelName, Annotated[int, Field(ge=1, le=100)]] = {}
    """Number of releases per channel to keep, the current one included. Default: 2."""
    deprecate_after: Days | None = None
    """Days until EC2 deprecates a published AMI, held or not, and `retire` one that is not used.
    Without it nothing is deprecated."""
    deregister_after: Days | None = None
    """Days from the disabling of an AMI, a day after its deprecation, to its deregistration; only
    what no channel holds and nothing uses. Without it nothing is disabled or deregistered."""
    max_age: Days = 7
    """Days after which `nightly` builds a row again although its inputs have not changed."""
    copy_minutes: Annotated[int, Field(ge=15, le=2880, multiple_of=15)] | None = None
    """Time-based copies: minutes in which EC2 must complete a copy, which it bills."""
    soak_hours: dict[ChannelName, Annotated[float, Field(ge=0, le=8760)]] = {}
    """Time that a release must have been in the previous channel, per channel of a promotion."""

    def regions_without_own_key(self, home: Account) -> list[str | None]:
        """The regions in which a shared AMI would be encrypted with the account's default EBS key,
        None for the one that bakes: EC2 shares nothing that AWS's own key encrypts.

        Source: https://github.com/hashicorp/packer/issues/7410
        """
        share = self.share
        if not (share.accounts or share.organizations or share.organizational_units):
            return []
        keys: dict[str | None, str | None] = {None: home.kms_key_id}
        keys |= {name: self.kms_keys.get(name) for name in self.regions if name != home.region}
        return [region for region, key in keys.items() if key is None or "alias/aws/" in key]

    def conflicts(self, home: str | None) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """The settings that do not fit together: the path of the one at fault, and why. `home` is
        the region that bakes, if the matrix names it."""
        for region, key in self.kms_keys.items():
            if elsewhere := key_elsewhere(key, region):
                yield ("kms_keys", region), f"the key is in {elsewhere}, not in {region}"
        if self.sign and (elsewhere := key_elsewhere(self.sign.kms_key, home)):
            yield ("sign", "kms_key"), f"the key is in {elsewhere}, and the build in {home}"
        if self.sign and bool(self.sign.kms_key) == bool(self.sign.key_file):
            yield ("sign",), "needs kms_key or key_file, and not both"
        if len(set(self.channels)) < len(self.channels):
            yield ("channels",), "a channel stands twice"
        named: list[tuple[tuple[str | int, ...], str]] = [
            *((("keep", channel), channel) for channel in self.keep),
            *((("soak_hours", channel), channel) for channel in self.soak_hours),
            *(
                (("launch_templates", index, "channel"), template.channel)
                for index, template in enumerate(self.launch_templates)
            ),
        ]
        for path, channel in named:
            if channel not in self.channels:
                hint = did_you_mean(channel, self.channels)
                yield path, f"there is no channel {channel!r}: {hint}"
        if self.channels[0] in self.soak_hours:
            first = self.channels[0]
            yield ("soak_hours", first), f"{first} is the first channel: nothing soaks before"
        if self.deregister_after and not self.deprecate_after:
            yield ("deregister_after",), "needs deprecate_after: an AMI is deprecated before"


class DistroSettings(Block):
    """Overrides for a distribution; fields left out are as in
    kiln/facts/knowledge/distros.yaml."""

    name: Annotated[str, vocabulary.NAME] | None = None
    """name for people"""
    family: Family | None = None
    """decides what the provisioners do"""
    package_manager: PackageManager | None = None
    """installs its packages"""
    ssh_user: Annotated[str, vocabulary.USER] | None = None
    """user of the parent AMI"""
    root_device: Annotated[str, vocabulary.DEVICE] | None = None
    """root device of the parent AMI; another name would add a second volume"""
    cuda_repo: Annotated[str, vocabulary.CUDA_REPO] | None = None
    """NVIDIA's name of the distribution in its CUDA repository"""
    parents: dict[Flavor, ParentImage] = {}
    """parent AMI per flavor"""

    @field_validator("*", mode="before")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        """Refuse a key without a value, which would silently override nothing."""
        if value is None:
            raise ValueError("is empty: give it a value, or remove the line")
        return value


class Settings(Block):
    """The settings of a row besides its stack; `defaults` sets them for all rows."""

    instance_type: dict[Arch, InstanceType] = {}
    """instance type that bakes, per arch; it needs no GPU"""
    verify_instance_type: dict[Arch, InstanceType] = {}
    """instance type on which the AMI is checked, per arch; `instance_type` when left out"""
    target_instance_types: tuple[InstanceType, ...] = ()
    """instance types that the AMI must run on; `check` fails if one cannot"""
    volume: Volume | None = None
    """root volume"""
    without: tuple[str, ...] = ()
    """components to leave out; adds to that of `defaults`"""
    kubernetes: Kubernetes | None = None
    """Kubernetes version, for flavor eks"""
    parallelcluster: Release | None = None
    """ParallelCluster version, for flavor parallelcluster"""
    telemetry: Telemetry | None = None
    """metrics and events that the CloudWatch agent sends: docs/telemetry-cloudwatch.md"""
    publish: Publish | None = None
    """where the AMIs go and who may launch them: docs/publish.md"""
    aws: Aws | None = None
    """how builds use your AWS account: docs/your-account.md"""
    mig_config: Label | None = None
    """MIG layout at boot if the launch selects none, such as all-1g.5gb"""
    extended_support: bool | None = None
    """you have the distribution's longer support (Ubuntu Pro): `check` accepts its end of life"""
    package_snapshot: str | None = None
    """the distribution's packages as they were: a release of Amazon Linux 2023, or a UTC time for
    Ubuntu and Debian"""


class MatrixRow(Settings, Stack):
    """One row of the matrix: distro × stack × flavors × arches."""

    distro: str
    """a distribution with `parents` in distros.yaml, such as al2023"""
    stack: str
    """a key of `stacks`"""
    line: Annotated[str, vocabulary.STACK_OF_LINE] | None = None
    """replaces the stack in the name of the AMI's folder in packer/, for rows that would share
    one"""
    accept: tuple[Acceptance, ...] = ()
    """warnings of `check` that the row accepts for a time"""
    flavors: tuple[Flavor, ...] = Field(("base",), min_length=1)
    """one AMI each; the distribution needs a parent AMI for it"""
    arches: tuple[Arch, ...] = Field(("x86_64",), min_length=1)
    """one AMI each"""


class Matrix(Block):
    """The whole of `amis.yaml`."""

    defaults: Settings = Settings()
    """settings of all rows; a row's replace them"""
    distros: dict[Id, DistroSettings] = {}
    """overrides for known distributions"""
    stacks: dict[Id, Stack] = {}
    """GPU stacks by name"""
    amis: tuple[MatrixRow, ...] = Field(min_length=1)
    """the rows"""


def matrix_json_schema() -> str:
    """The schema of `amis.yaml` as JSON Schema, for editors."""
    schema = Matrix.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "AMI Kiln matrix"
    return json.dumps(schema, indent=2) + "\n"
