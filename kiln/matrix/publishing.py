"""The `publish` block of `defaults` or of a row in `amis.yaml`: who gets the row's AMIs, and when.

It says nothing about what is on an image, so it is not part of a recipe or of its digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from kiln.base import account as accounts
from kiln.base import vocabulary
from kiln.base.account import Block, KmsKey, Region, key_elsewhere
from kiln.base.errors import did_you_mean

ChannelName = Annotated[str, vocabulary.CHANNEL]


class Share(Block):
    """Who may launch the AMIs besides the account that owns them."""

    accounts: tuple[Annotated[str, vocabulary.ACCOUNT], ...] = ()
    """Account ids, in quotes; they may read the snapshots as well."""
    organizations: tuple[Annotated[str, vocabulary.ORGANIZATION], ...] = ()
    """ARNs of organizations."""
    organizational_units: tuple[Annotated[str, vocabulary.ORGANIZATIONAL_UNIT], ...] = ()
    """ARNs of organizational units."""

    @property
    def somebody(self) -> bool:
        """Whether anybody is named."""
        return bool(self.accounts or self.organizations or self.organizational_units)


class LaunchTemplate(Block):
    """A launch template whose default version follows a channel."""

    name: Annotated[str, vocabulary.LAUNCH_TEMPLATE]
    """The template's name."""
    channel: ChannelName
    """The channel that its default version follows."""
    regions: tuple[Region, ...] = ()
    """Where the template exists; empty: in every region of `publish`."""


class Sign(Block):
    """The key that signs where each published AMI comes from: one of the two."""

    kms_key: KmsKey | None = None
    """A KMS key for SIGN_VERIFY in the region that bakes."""
    key_file: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """A private ed25519 key in PEM, relative to amis.yaml; to promote, the public one is enough."""


Days = Annotated[int, Field(ge=1, le=3650)]


class Publish(Block):
    """Where a row's AMIs go, who may use them, and how long they stay."""

    regions: tuple[Region, ...] = ()
    """Regions that get a copy, besides the region that bakes."""
    share: Share = Share()
    """Who may launch the AMIs besides the account that owns them."""
    kms_keys: dict[Region, KmsKey] = {}
    """KMS key that encrypts the AMI, per region."""
    channels: tuple[ChannelName, ...] = Field(("nightly", "candidate", "stable"), min_length=1)
    """Channels, in the order in which a release is promoted."""
    launch_templates: tuple[LaunchTemplate, ...] = ()
    """Launch templates whose default version follows a channel."""
    sign: Sign | None = None
    """Sign a statement of where each published AMI comes from; an unsigned one is not promoted."""
    keep: dict[ChannelName, Annotated[int, Field(ge=1, le=100)]] = {}
    """How many releases of a channel, its present one included, are never retired; otherwise 2."""
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
    """How long a release must have been in the channel before, per channel it is promoted to."""


# What the names of a partition's regions begin with:
# https://docs.aws.amazon.com/whitepapers/latest/aws-fault-isolation-boundaries/partitions.html
_PARTITIONS = {
    "cn-": "aws-cn",
    "us-gov-": "aws-us-gov",
    "us-iso-": "aws-iso",
    "us-isob-": "aws-iso-b",
    "eu-isoe-": "aws-iso-e",
    "us-isof-": "aws-iso-f",
    "eusc-": "aws-eusc",
}


def _partition(region: str) -> str:
    return next((name for start, name in _PARTITIONS.items() if region.startswith(start)), "aws")


_Path = tuple[str | int, ...]


def _elsewhere(settings: Publish, home: str | None) -> Iterator[tuple[_Path, str]]:
    """Regions, keys and ARNs with which EC2 cannot do anything here; `home` is the region that
    bakes, if the matrix names it."""
    for region, key in settings.kms_keys.items():
        if elsewhere := key_elsewhere(key, region):
            yield ("kms_keys", region), f"the key is in {elsewhere}, not in {region}"
    if settings.sign and (elsewhere := key_elsewhere(settings.sign.kms_key, home)):
        yield ("sign", "kms_key"), f"the key is in {elsewhere}, and the build in {home}"
    share, templates = settings.share, settings.launch_templates
    regions: list[tuple[_Path, str]] = [
        *((("regions", index), name) for index, name in enumerate(settings.regions)),
        *((("kms_keys", name), name) for name in settings.kms_keys),
        *(
            (("launch_templates", index, "regions"), name)
            for index, template in enumerate(templates)
            for name in template.regions
        ),
    ]
    first = home or (regions[0][1] if regions else None)
    if first is None:
        return
    ours = _partition(first)
    for path, name in regions:
        if _partition(name) != ours:
            yield path, f"{name} is in the partition {_partition(name)}, and {first} in {ours}"
    for key in ("organizations", "organizational_units"):
        for arn in getattr(share, key):
            if arn.split(":")[1] != ours:
                yield ("share", key), f"{arn} is not in the partition {ours} of {first}"


def without_own_key(settings: Publish, home: accounts.Account) -> list[str | None]:
    """The regions in which a shared AMI would be encrypted with the account's default EBS key, None
    for the one that bakes: EC2 shares nothing that AWS's own key encrypts.

    Source: https://github.com/hashicorp/packer/issues/7410
    """
    if not settings.share.somebody:
        return []
    keys: dict[str | None, str | None] = {None: home.kms_key_id}
    keys |= {name: settings.kms_keys.get(name) for name in settings.regions if name != home.region}
    return [region for region, key in keys.items() if key is None or is_awss_own(key)]


def is_awss_own(key: str) -> bool:
    """Whether a key's name is that of a key that AWS manages."""
    return "alias/aws/" in key


def inconsistent(settings: Publish, home: str | None) -> Iterator[tuple[_Path, str]]:
    """What does not fit together in merged settings: the path within `publish`, and why. `home` is
    the region that bakes, if the matrix names it."""
    yield from _elsewhere(settings, home)
    if len(set(settings.channels)) < len(settings.channels):
        yield ("channels",), "a channel stands twice"
    named = [
        *((("keep", channel), channel) for channel in settings.keep),
        *((("soak_hours", channel), channel) for channel in settings.soak_hours),
        *(
            (("launch_templates", index, "channel"), template.channel)
            for index, template in enumerate(settings.launch_templates)
        ),
    ]
    for path, channel in named:
        if channel not in settings.channels:
            hint = did_you_mean(channel, settings.channels)
            yield path, f"there is no channel {channel!r}: {hint}"
    for channel in settings.soak_hours:
        if channel == settings.channels[0]:
            yield ("soak_hours", channel), f"{channel} is the first channel: nothing soaks before"
    if settings.sign and bool(settings.sign.kms_key) == bool(settings.sign.key_file):
        yield ("sign",), "needs kms_key or key_file, and not both"
    if settings.deregister_after and not settings.deprecate_after:
        yield ("deregister_after",), "needs deprecate_after: an AMI is deprecated before"
