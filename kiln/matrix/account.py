"""The `aws` block of `defaults` or of a row in `amis.yaml`: how builds use your AWS account."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)
from pydantic import model_validator as whole

from kiln import components
from kiln.base import tags as our_tags
from kiln.base import vocabulary
from kiln.base.account import Account, SubnetFilter
from kiln.base.errors import did_you_mean
from kiln.base.located import Path_
from kiln.base.vocabulary import Arch


def _text(form: vocabulary.Form, longest: int = 512) -> StringConstraints:
    return StringConstraints(pattern=form.pattern, max_length=longest)


def _own_key(key: str) -> str:
    if key.lower().startswith(("aws:", our_tags.PREFIX)) or key == "Name":
        raise ValueError(f"tag {key!r} is reserved for AWS or AMI Kiln")
    return key


def _limited(name: str) -> str:
    names = ["all", *components.names()]
    if name not in names:
        raise ValueError(f"there is no component {name!r}: {did_you_mean(name, names)}")
    return name


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


def _with_port(url: str) -> str:
    port = re.match(r"https?://[^/:]+:([0-9]+)", url)
    if port and not 1 <= int(port[1]) <= 65535:
        raise ValueError(f"{port[1]} is not a port: 1 to 65535")
    return url


def _each_once(values: tuple[str, ...]) -> tuple[str, ...]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{value} is listed twice")
    return values


_LONGEST_KEY, _LONGEST_VALUE = 128, 256
# EC2 allows 50 tags on a resource; a bake's own, Name and those that come later take up to 24.
_MOST_TAGS = 25
TagKey = Annotated[str, _text(vocabulary.TAG_KEY, _LONGEST_KEY), AfterValidator(_own_key)]
TagValue = Annotated[str, _text(vocabulary.TAG_VALUE, _LONGEST_VALUE)]
Filter = Annotated[str, _text(vocabulary.FILTER)]
Region = Annotated[str, _text(vocabulary.REGION)]
Subnet = Annotated[str, _text(vocabulary.SUBNET_ID)]
SecurityGroup = Annotated[str, _text(vocabulary.SECURITY_GROUP_ID)]
Reservation = Annotated[str, _text(vocabulary.RESERVATION_ID)]
Key = Annotated[str, _text(vocabulary.KMS_KEY)]
Profile = Annotated[str, _text(vocabulary.INSTANCE_PROFILE, 128)]
Policy = Annotated[str, _text(vocabulary.POLICY_ARN, vocabulary.POLICY_ARN.longest)]
InstanceType = Annotated[str, _text(vocabulary.INSTANCE_TYPE)]
Proxy = Annotated[str, _text(vocabulary.PROXY), AfterValidator(_with_port)]
NoProxy = Annotated[str, _text(vocabulary.NO_PROXY)]
Bucket = Annotated[str, _text(vocabulary.BUCKET, 63)]
Url = Annotated[
    str,
    _text(vocabulary.URL),
    AfterValidator(_with_port),
    AfterValidator(lambda text: text.rstrip("/")),
]
Limited = Annotated[str, AfterValidator(_limited)]
# For a number without its unit the message names the missing unit, not the type.
TimeLimit = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, int) else value),
    _text(vocabulary.DURATION),
]
Cidr = Annotated[str, AfterValidator(_cidr)]
_Entry = TypeVar("_Entry", bound=str)
Listed = Annotated[
    tuple[_Entry, ...], AfterValidator(_each_once), Field(json_schema_extra={"uniqueItems": True})
]


class _Block(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class SubnetChoice(_Block):
    """How to find a subnet, as Packer's subnet_filter has it."""

    filters: dict[Filter, Filter] = Field(min_length=1)
    """EC2's filters of DescribeSubnets, name and value: {"tag:Class": build}."""
    most_free: bool = False
    """Of several subnets, the one with the most free addresses."""
    random: bool = False
    """Of several subnets, any."""

    @whole(mode="after")
    def _one_way(self) -> SubnetChoice:
        if self.most_free and self.random:
            raise ValueError("give either most_free or random")
        return self


class Aws(_Block):
    """How builds use your AWS account. null removes what `defaults` sets, of a list []."""

    region: Region | None = None
    """Where to build; --region and AWS_REGION come before it, the profile's region after it."""
    tags: dict[TagKey, TagValue] = Field({}, max_length=_MOST_TAGS)
    """On everything that is made in the account; a row's are added to those of `defaults`."""
    subnet_id: Subnet | None = None
    """Where the instances are launched; otherwise a default subnet."""
    subnet_ids: Listed[Subnet] = ()
    """Of one VPC, in order: the next is tried when EC2 has no capacity in one."""
    subnet_filter: SubnetChoice | None = None
    """Finds the subnet, instead of subnet_id."""
    security_group_ids: Listed[SecurityGroup] = ()
    """Your own groups instead of a temporary one; they must admit SSH from here."""
    ssh_interface: Literal["public_ip", "private_ip", "session_manager"] | None = None
    """How instances are reached; otherwise as the subnet has it."""
    ssh_source_cidrs: Listed[Cidr] = ()
    """Who may reach SSH on the instances; otherwise this machine's own address."""
    kms_key_id: Key | None = None
    """Encrypts the volumes and the AMI; otherwise the account's default EBS key."""
    iam_instance_profile: Profile | None = None
    """Of the instances; session_manager needs one."""
    permissions_boundary: Policy | None = None
    """Of the roles that deploy.codebuild makes."""
    instance_types: dict[Arch, Listed[InstanceType]] = {}
    """Per arch: types that bake, in order; the next is taken when EC2 has no capacity."""
    spot: bool = False
    """Spot instances, at most at the on-demand price."""
    capacity_reservation_id: Reservation | None = None
    """Instances of the reservation's type are launched in it."""
    proxy: Proxy | None = None
    """Used by package tools, curl and installers during the bake, and by nothing afterwards."""
    no_proxy: Listed[NoProxy] = ()
    """Hosts that the bake reaches without the proxy."""
    mirrors: dict[Url, Url] = {}
    """Beginning of a vendor's URL → what takes its place during the bake; hashes and keys stay."""
    time_limits: dict[Limited, TimeLimit] = {}
    """Component, or `all` for the others → how long its provisioner may take: 90m, 4h."""
    records_bucket: Bucket | None = None
    """S3 bucket that keeps the record of each run below `runs/`, for machines that share it."""

    @whole(mode="after")
    def _one_subnet(self) -> Aws:
        if sum(map(bool, (self.subnet_id, self.subnet_ids, self.subnet_filter))) > 1:
            raise ValueError("give either subnet_id, subnet_ids or subnet_filter")
        return self

    @whole(mode="after")
    def _mirrors_as_safe(self) -> Aws:
        for vendor, mirror in self.mirrors.items():
            if vendor.startswith("https:") and not mirror.startswith("https:"):
                raise ValueError(f"mirrors: {mirror} has no TLS, and {vendor} has")
        return self

    @whole(mode="after")
    def _mirrors_can_be_undone(self) -> Aws:
        targets = list(self.mirrors.values())
        for index, entry in enumerate(targets):
            others = targets[index + 1 :] + targets[:index]
            if any(f"{other}/".startswith(f"{entry}/") for other in others):
                raise ValueError(f"mirrors: {entry} takes the place of two vendors' URLs")
        return self


_MERGED = ("tags", "mirrors", "time_limits")
# Ways to name the subnet, and what each is when another one is used.
SUBNETS: dict[str, Any] = {"subnet_id": None, "subnet_ids": (), "subnet_filter": None}


def layered(
    below: Account, block: Aws | None, origin: Callable[[tuple[str, ...]], str], arch: str | None
) -> Account:
    """The settings below with those of a block: a key replaces a key, a tag a tag, a mirror a
    mirror, a limit a limit. `origin` says where a key of the block stands; `arch` chooses its
    instance types."""
    if block is None:
        return below
    values: dict[str, Any] = {}
    origins = dict(below.origins)
    for name in block.model_fields_set:
        value = getattr(block, name)
        if name in _MERGED:
            values[name] = {**getattr(below, name), **value}
            origins |= {f"{name}.{key}": origin((name, key)) for key in value}
        elif name == "instance_types":
            if arch in value:
                values[name] = value[arch]
                origins[name] = origin((name, str(arch)))
        else:
            values[name] = _plain(value)
            origins[name] = origin((name,))
    # A subnet of a closer layer takes the place of a filter of a farther one.
    if any(values.get(name) for name in SUBNETS):
        for name, nothing in SUBNETS.items():
            if name not in values:
                values[name] = nothing
                origins.pop(name, None)
    return replace(below, **values, origins=origins)


def _plain(value: Any) -> Any:
    if isinstance(value, SubnetChoice):
        return SubnetFilter(**value.model_dump())
    return value


def unfit(account: Account) -> Iterator[tuple[str, str]]:
    """What does not fit together in merged settings: the setting at fault, and why."""
    if account.spot and account.capacity_reservation_id:
        yield "spot", "Spot instances do not run in a capacity reservation"
    if account.security_group_ids and account.ssh_source_cidrs:
        yield (
            "ssh_source_cidrs",
            "security_group_ids are your own groups, to which AMI Kiln adds no rule",
        )
    if chained := _chained(account.mirrors):
        yield "mirrors", chained
    if len(account.tags) > _MOST_TAGS:
        yield (
            "tags",
            f"{len(account.tags)} are more than {_MOST_TAGS}, with which EC2's 50 are full",
        )


def _chained(mirrors: Mapping[str, str]) -> str:
    """Why mirrors cannot be taken back: one of them is itself replaced, as in a circle; "" if none
    is. A bake replaces the URLs in the package sources one after another."""
    for vendor, mirror in mirrors.items():
        for other in mirrors:
            if f"{mirror}/".startswith(f"{other}/"):
                again = "itself" if other == vendor else f"another mirror's {other}"
                return f"{mirror}, the mirror of {vendor}, would be replaced again, as {again}"
    return ""


def key_elsewhere(key: str | None, region: str | None) -> str:
    """The region of a KMS key that cannot encrypt what is made in another one; "" if it can, and
    for a key that is not named by an ARN."""
    parts = (key or "").split(":")
    if region is None or len(parts) < 6 or parts[3] == region:
        return ""
    return parts[3]


def empty_lists(below: Account, block: Aws | None, arch: str) -> Iterator[tuple[Path_, str]]:
    """Empty settings of a block that change nothing of those below: where in the block, and why."""
    for name in sorted(block.model_fields_set) if block else ():
        path: Path_ = (name,)
        value, there = getattr(block, name), getattr(below, name, None)
        if name == "instance_types" and arch in value:
            path, value = (name, arch), value[arch]
        if value == () and not there:
            yield path, "is empty: give it a value, or remove the line"
        elif value == {} and there and name in _MERGED:
            yield path, "is empty, and takes nothing off: entries are added to those of `defaults`"
