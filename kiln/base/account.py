"""The `aws` settings: how builds use an AWS account.

Each setting is one field of `AwsSettings`. Its key in amis.yaml, flag, variable of the environment,
help, JSON Schema and lines in the reference pages come from it. They say nothing about what is on
an image, so they are not part of a recipe's digest.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    model_validator,
)
from pydantic.fields import FieldInfo

from kiln.base import tags as our_tags
from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.vocabulary import Arch, masked

# Of AWS's own tools, in the order in which they count.
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
# EC2 allows 50 tags on a resource; a bake's own, Name and those that come later take up to 24.
MOST_TAGS = 25


_Same = TypeVar("_Same", bound="Block")


class Block(BaseModel):
    """A mapping in a YAML file: an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True
    )

    def changed(self: _Same, **fields: Any) -> _Same:
        """Return a copy with other values of these fields, which are not validated."""
        return self.model_copy(update=fields)


@dataclass(frozen=True)
class Flag:
    """A setting's form on the command line and in the environment.

    `example` is a value for the help; `separator` is between the entries of a list or mapping.
    Without `variables` the environment's variable is KILN_AWS_ and the setting's name.
    """

    example: str
    separator: str | None = ","
    variables: tuple[str, ...] = ()


_Entry = TypeVar("_Entry", bound=str)


def _each_once(values: tuple[str, ...]) -> tuple[str, ...]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{value} is listed twice")
    return values


def _own_key(key: str) -> str:
    if key.lower().startswith(("aws:", our_tags.PREFIX)) or key == "Name":
        raise ValueError(f"tag {key!r} is reserved for AWS or AMI Kiln")
    return key


def _cidr(text: str) -> str:
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as error:
        wrong = f"{vocabulary.shown(text)} is not an IPv4 block such as 203.0.113.7/32: {error}"
        raise ValueError(wrong) from None
    if "/" not in text:
        raise ValueError(f"{text} has no prefix length: {text}/32 is one address")
    if network.prefixlen == 0:
        raise ValueError(f"{text} is the whole internet: name the builders' addresses")
    return text


Listed = Annotated[
    tuple[_Entry, ...], AfterValidator(_each_once), Field(json_schema_extra={"uniqueItems": True})
]
TagKey = Annotated[str, vocabulary.TAG_KEY, AfterValidator(_own_key)]
TagValue = Annotated[str, vocabulary.TAG_VALUE]
Region = Annotated[str, vocabulary.REGION]
Subnet = Annotated[str, vocabulary.SUBNET_ID]
KmsKey = Annotated[str, vocabulary.KMS_KEY]
InstanceType = Annotated[str, vocabulary.INSTANCE_TYPE]
SubnetFilterText = Annotated[str, vocabulary.FILTER]
Url = Annotated[
    str,
    vocabulary.URL,
    AfterValidator(lambda text: text.rstrip("/")),
]


class SubnetFilter(Block):
    """Filters that find a subnet, as Packer's subnet_filter has it."""

    filters: dict[SubnetFilterText, SubnetFilterText] = Field(min_length=1)
    """EC2's filters of DescribeSubnets, name and value: {"tag:Class": build}."""
    most_free: bool = False
    """Choose the subnet with the most free addresses."""
    random: bool = False
    """Choose a random subnet."""

    @model_validator(mode="after")
    def _one_way(self) -> SubnetFilter:
        if self.most_free and self.random:
            raise ValueError("give either most_free or random")
        return self

    def __str__(self) -> str:
        chosen = ["most_free"] * self.most_free + ["random"] * self.random
        return " ".join([*(f"{key}={text}" for key, text in self.filters.items()), *chosen])


class AwsSettings(Block):
    """The settings, except for `instance_types`, which amis.yaml has per arch."""

    region: Annotated[Region | None, Flag("eu-central-1", variables=REGION_VARIABLES)] = None
    """build region (default: the profile's region, then us-east-1)"""
    subnet_id: Annotated[Subnet | None, Flag("subnet-0123456789abcdef0")] = None
    """build subnet (default: the VPC's default subnet)"""
    subnet_ids: Annotated[
        Listed[Subnet], Flag("subnet-0123456789abcdef0,subnet-0fedcba9876543210")
    ] = ()
    """subnets of one VPC, tried in order when EC2 lacks capacity"""
    subnet_filter: Annotated[
        SubnetFilter | None, Flag("tag:Class=build,availability-zone=eu-central-1a")
    ] = None
    """DescribeSubnets filters that find the subnet"""
    security_group_ids: Annotated[
        Listed[Annotated[str, vocabulary.SECURITY_GROUP_ID]],
        Flag("sg-0123456789abcdef0,sg-0fedcba9876543210"),
    ] = ()
    """your own groups instead of a temporary one; they must allow SSH from here"""
    ssh_interface: Annotated[
        Literal["public_ip", "private_ip", "session_manager"] | None, Flag("private_ip")
    ] = None
    """public_ip, private_ip or session_manager (default: the subnet's setting)"""
    ssh_source_cidrs: Annotated[
        Listed[Annotated[str, AfterValidator(_cidr)]], Flag("10.0.0.0/8,192.0.2.7/32")
    ] = ()
    """source CIDRs allowed to reach SSH (default: this machine)"""
    iam_instance_profile: Annotated[
        Annotated[str, vocabulary.INSTANCE_PROFILE] | None, Flag("kiln-builder")
    ] = None
    """instance profile"""
    kms_key_id: Annotated[KmsKey | None, Flag("alias/ami")] = None
    """KMS key for volumes and AMI (default: the account's default EBS key)"""
    spot: Annotated[bool, Flag("")] = False
    """use Spot instances, at most at the on-demand price"""
    capacity_reservation_id: Annotated[
        Annotated[str, vocabulary.RESERVATION_ID] | None, Flag("cr-0123456789abcdef0")
    ] = None
    """capacity reservation for instances of its type"""
    tags: Annotated[
        Annotated[dict[TagKey, TagValue], Field(max_length=MOST_TAGS)],
        Flag("team=ml,cost-center=42"),
    ] = {}
    """tags for every AWS resource, added to those in `defaults`"""
    proxy: Annotated[
        Annotated[str, vocabulary.PROXY] | None,
        Flag("http://proxy.example.com:3128"),
    ] = None
    """build proxy for package tools, curl and installers; not kept on the image"""
    no_proxy: Annotated[
        Listed[Annotated[str, vocabulary.NO_PROXY]], Flag(".example.com,10.0.0.0/8")
    ] = ()
    """hosts that bypass the build proxy"""
    mirrors: Annotated[
        dict[Url, Url],
        Flag(
            '"https://developer.download.nvidia.com=https://mirror.example.com/nvidia"',
            separator=None,
            variables=("KILN_MIRRORS",),
        ),
    ] = {}
    """vendor URL prefixes and their mirrors; hashes and keys still apply"""
    time_limits: Annotated[
        dict[str, Annotated[str, vocabulary.DURATION]], Flag("all=3h,nvidia-driver=4h")
    ] = {}
    """time limit for each component's provisioner; all: every other component"""
    records_bucket: Annotated[Annotated[str, vocabulary.BUCKET] | None, Flag("my-kiln-records")] = (
        None
    )
    """S3 bucket for shared build records"""
    permissions_boundary: Annotated[
        Annotated[str, vocabulary.POLICY_ARN] | None,
        Flag("arn:aws:iam::111122223333:policy/teams"),
    ] = None
    """permissions boundary for the roles of deploy.codebuild and stack.deploy"""

    @model_validator(mode="after")
    def _mirrors_are_safe(self) -> AwsSettings:
        for vendor, mirror in self.mirrors.items():
            if vendor.startswith("https:") and not mirror.startswith("https:"):
                raise ValueError(f"mirrors: {mirror} has no TLS, and {vendor} has")
        return self


class Aws(AwsSettings):
    """AWS account settings for builds. null (or [] for a list) clears a value set in `defaults`."""

    instance_types: dict[Arch, Listed[InstanceType]] = {}
    """build instance types per arch, tried in order when EC2 lacks capacity"""

    @model_validator(mode="after")
    def _one_subnet(self) -> Aws:
        if sum(bool(getattr(self, name)) for name in SUBNETS) > 1:
            raise ValueError("give either subnet_id, subnet_ids or subnet_filter")
        return self


class Account(AwsSettings):
    """The merged settings of one build, for the arch of its recipe.

    `origins` maps each setting to where it is from: file and line, a flag, or a variable of the
    environment; of a mapping, each key (`tags.owner`).
    """

    instance_types: Annotated[Listed[InstanceType], Flag("g4dn.xlarge,g5.xlarge")] = ()
    """types that bake, in order: the next when EC2 has no capacity"""
    origins: Annotated[Mapping[str, str], Field(exclude=True, repr=False)] = {}

    @property
    def region_of_caller(self) -> bool:
        """True if the region is from a flag or the environment, and not from a file."""
        return self.origins.get("region") in ("--region", *REGION_VARIABLES)

    def with_block(
        self, block: Aws | None, origin: Callable[[tuple[str, ...]], str], arch: str | None
    ) -> Account:
        """Return these settings with those of a block over them: a key replaces a key; of tags,
        mirrors and time limits an entry replaces an entry. `origin` says where a key of the block
        stands; `arch` chooses its instance types."""
        if block is None:
            return self
        values: dict[str, Any] = {}
        origins = dict(self.origins)
        for name in block.model_fields_set:
            value = getattr(block, name)
            if name == "instance_types":
                if arch in value:
                    values[name] = value[arch]
                    origins[name] = origin((name, str(arch)))
            elif isinstance(value, dict):
                values[name] = {**getattr(self, name), **value}
                origins |= {f"{name}.{key}": origin((name, key)) for key in value}
            else:
                values[name] = value
                origins[name] = origin((name,))
        # A subnet of a closer layer takes the place of a filter of a farther one.
        if any(values.get(name) for name in SUBNETS):
            for name in SUBNETS - values.keys():
                values[name] = AwsSettings.model_fields[name].default
                origins.pop(name, None)
        return self.model_copy(update={**values, "origins": origins})

    def to_dict(self) -> dict[str, list[dict[str, str]]]:
        """Setting → its value as text, and where it comes from; of a mapping each entry."""
        found: dict[str, list[dict[str, str]]] = {}
        for name in SETTINGS:
            value = getattr(self, name)
            if isinstance(value, Mapping):
                parts = {f"{name}.{key}": f"{key}={text}" for key, text in value.items()}
            else:
                parts = {name: _as_text(value)} if name in self.origins else {}
            if parts:
                found[name] = [
                    {"value": text, "from": self.origins.get(key, "default")}
                    for key, text in parts.items()
                ]
        return found

    def shown(self, without: Collection[str] = ()) -> list[str]:
        """Each setting that is set, as a line: its name, its value, where it comes from."""
        return [
            f"{name} " + ", ".join(f"{part['value']} ({part['from']})" for part in parts)
            for name, parts in self.to_dict().items()
            if name not in without
        ]

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """The settings that do not fit together: the one at fault, and why."""
        if self.spot and self.capacity_reservation_id:
            yield "spot", "Spot instances do not run in a capacity reservation"
        if self.security_group_ids and self.ssh_source_cidrs:
            why = "security_group_ids are your own groups, to which AMI Kiln adds no rule"
            yield "ssh_source_cidrs", why
        if len(self.tags) > MOST_TAGS:
            why = f"{len(self.tags)} are more than {MOST_TAGS}, with which EC2's 50 are full"
            yield "tags", why
        # A bake replaces the URLs in the package sources one after another, and puts the vendors'
        # back afterwards.
        urls = [*self.mirrors, *self.mirrors.values()]
        for mirror in self.mirrors.values():
            if sum(f"{mirror}/".startswith(f"{url}/") for url in urls) > 1:
                yield (
                    "mirrors",
                    f"{mirror} is below another vendor or mirror, or serves two vendors",
                )


# The ways to name the subnet.
SUBNETS = {"subnet_id", "subnet_ids", "subnet_filter"}
# Setting → how it is typed, in the order in which they are shown.
SETTINGS: dict[str, Flag] = {
    name: flag
    for name, field in Account.model_fields.items()
    for flag in field.metadata
    if isinstance(flag, Flag)
}


def variables(name: str) -> tuple[str, ...]:
    """The variables of the environment for a setting, of which the first that is set counts."""
    return SETTINGS[name].variables or (f"KILN_AWS_{name.upper()}",)


def setting_help(field: FieldInfo, name: str) -> str:
    """The help of a setting's flag: what it is, and an example, which may be its default."""
    examples = (each.example for each in field.metadata if isinstance(each, Flag))
    flag = f"--{name.replace('_', '-')} {next(examples, field.default)}".rstrip()
    return f"{' '.join(str(field.description).split()).removesuffix('.')}: {flag}"


def key_elsewhere(key: str | None, region: str | None) -> str:
    """The region of a KMS key that cannot encrypt what is made in another one; "" if it can, and
    for a key that is not named by an ARN."""
    parts = (key or "").split(":")
    if region is None or len(parts) < 6 or parts[3] == region:
        return ""
    return parts[3]


def _as_text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(value) or "none"
    return "none" if value is None else str(value).lower() if value in (True, False) else str(value)


def mirrored(url: str) -> str:
    """Return where this machine fetches a vendor's URL: at the mirror of KILN_MIRRORS with the
    longest beginning that fits, or the URL itself."""
    words = os.environ.get("KILN_MIRRORS", "").split()
    try:
        mirrors = TypeAdapter(dict[Url, Url]).validate_python(
            dict(word.split("=", 1) for word in words)
        )
    except ValueError:  # pydantic's is one, too
        raise KilnError(
            f"KILN_MIRRORS: {masked(' '.join(words))} are not pairs of URLs without user and "
            "password, such as https://vendor.example=https://mirror.example/vendor"
        ) from None
    vendors = [vendor for vendor in mirrors if f"{url}/".startswith(f"{vendor}/")]
    vendor = max(vendors, key=len, default="")
    return mirrors.get(vendor, "") + url.removeprefix(vendor)
