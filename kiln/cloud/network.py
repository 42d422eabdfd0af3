"""Places of a run's instances, and this machine's way to them: subnet, VPC, security group, key
pair; and which launch comes next when EC2 has no capacity for one."""

from __future__ import annotations

import http.client
import ipaddress
import random
import re
import shutil
import socket
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kiln.base.account import Account, SubnetFilter
from kiln.base.errors import operation_failed
from kiln.cloud import aws, session
from kiln.cloud.cleanup import tags
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.facts.tables import message

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

SESSION_MANAGER = "session_manager"
# Packer requires an ingress rule; Session Manager needs none.
NOBODY = "127.0.0.1/32"
# AWS's own "what is my address".
_CHECK_IP = "https://checkip.amazonaws.com"
# What to look at when an instance does not answer, by how it is reached.
_HINTS = {
    "public_ip": "reached by its public address: does its subnet lead to an internet gateway, and "
    "does nothing between here and there stop port 22?",
    "private_ip": "reached by its private address: is this machine in that VPC, a peered one or "
    "behind a VPN? From anywhere: --ssh-interface session_manager; from behind a NAT: "
    "--ssh-source-cidrs",
    SESSION_MANAGER: "reached by Session Manager: has the parent AMI an SSM agent (Debian's have "
    "none), the instance profile's role AmazonSSMManagedInstanceCore, and the subnet a way to "
    "Systems Manager?",
}


@dataclass(frozen=True)
class Network:
    """A run's subnets in the order in which they are tried (None: a default one), their VPC, how
    its instances are reached, and who may reach SSH on them."""

    subnets: tuple[str | None, ...]
    vpc_id: str
    ssh_interface: str
    source_cidrs: tuple[str, ...]

    @property
    def by_session(self) -> bool:
        """True if instances are reached by Session Manager, which needs no open port."""
        return self.ssh_interface == SESSION_MANAGER

    @property
    def hint(self) -> str:
        """Hint for when an instance does not answer."""
        return _HINTS[self.ssh_interface]


@dataclass(frozen=True)
class Access:
    """Access to a run's instances: its own key pair, and a security group of its own or those that
    the settings name."""

    key_name: str
    key_file: Path
    security_groups: tuple[str, ...]
    network: Network


def make_access(run: Run, target: Target, account: Account, *, efa: bool = False) -> Access:
    """Create a key pair, and a security group that opens port 22 to this machine's address, as far
    as the settings do not have it otherwise. With `efa` the group allows all traffic in itself."""
    client = aws.ec2(target)
    network = find_network(account, target)
    with aws.explained("the key pair could not be created"):
        key = client.create_key_pair(
            KeyName=f"kiln-{run.id}",
            KeyType="ed25519",
            TagSpecifications=[_tagged("key-pair", run, account)],
        )
    folder = run.folder / "ssh"
    folder.mkdir(mode=0o700)
    key_file = folder / "key.pem"
    key_file.touch(mode=0o600)
    key_file.write_text(key["KeyMaterial"])
    groups = account.security_group_ids or (_make_group(target, run, network, account, efa=efa),)
    return Access(f"kiln-{run.id}", key_file, groups, network)


def forget_key(run: Run) -> None:
    """Delete the private key of a run from this machine."""
    shutil.rmtree(run.folder / "ssh", ignore_errors=True)


def _make_group(target: Target, run: Run, network: Network, account: Account, *, efa: bool) -> str:
    client, every = aws.ec2(target), target.poll_seconds
    with aws.explained("the security group could not be created"):
        group = client.create_security_group(
            GroupName=f"kiln-{run.id}",
            Description=f"AMI Kiln run {run.id}: SSH from the machine that builds",
            VpcId=network.vpc_id,
            TagSpecifications=[_tagged("security-group", run, account)],
        )["GroupId"]
        # EC2 may not know a new group for some seconds, neither here nor at a launch:
        # https://github.com/hashicorp/packer/pull/6843
        aws.wait(client, "security_group_exists", limit=30, every=every, GroupIds=[group])
        if efa:
            # EFA's own traffic needs both rules, whatever goes out to 0.0.0.0/0:
            # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html#efa-start-security
            itself: Any = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
            client.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
            client.authorize_security_group_egress(GroupId=group, IpPermissions=itself)
        if network.by_session:
            return group
        client.authorize_security_group_ingress(
            GroupId=group,
            IpPermissions=[
                {
                    "IpProtocol": "tcp",
                    "FromPort": 22,
                    "ToPort": 22,
                    "IpRanges": [
                        {"CidrIp": cidr, "Description": "the machine that builds"}
                        for cidr in network.source_cidrs
                    ],
                }
            ],
        )
    return group


def _tagged(kind: Any, run: Run, account: Account) -> Any:
    return {"ResourceType": kind, "Tags": tags(run.id, **account.tags, Name=f"kiln-{run.id}")}


def find_network(account: Account, target: Target) -> Network:
    """The network of a build's settings. A subnet that gives no public addresses is reached from
    inside."""
    client = aws.ec2(target)
    with aws.explained("the subnet could not be looked up"):
        subnets = _subnets(client, account)
        vpc = subnets[0]["VpcId"] if subnets else _default_vpc(client)
    public = not subnets or bool(subnets[0].get("MapPublicIpOnLaunch"))
    way = account.ssh_interface or ("public_ip" if public else "private_ip")
    if way == SESSION_MANAGER:
        session.require_plugin()
    if account.ssh_source_cidrs:
        cidrs = account.ssh_source_cidrs
    elif way == SESSION_MANAGER or account.security_group_ids:
        cidrs = (NOBODY,)
    else:
        cidrs = (target.own_cidr or _own_address(client, way, subnets, vpc),)
    ids = tuple(str(subnet["SubnetId"]) for subnet in subnets)
    return Network(ids or (None,), vpc, way, cidrs)


def _subnets(client: EC2Client, account: Account) -> list[Any]:
    """The subnets of the settings, in order; none for a default one."""
    if account.subnet_filter:
        return [_filtered(client, account.subnet_filter)]
    ids = [account.subnet_id] if account.subnet_id else list(account.subnet_ids)
    if not ids:
        return []
    found = {
        subnet["SubnetId"]: subnet for subnet in client.describe_subnets(SubnetIds=ids)["Subnets"]
    }
    return [found[subnet_id] for subnet_id in ids]


def _filtered(client: EC2Client, wanted: SubnetFilter) -> Any:
    filters = _filters(wanted.filters)
    subnets = list(aws.paginated(client, "describe_subnets", "Subnets", Filters=filters))
    shown = " ".join(f"{name}={text}" for name, text in wanted.filters.items())
    if not subnets:
        raise operation_failed(
            f"no subnet matches subnet_filter {shown} in {client.meta.region_name}",
            hint="aws ec2 describe-subnets shows the subnets of the region, with their tags",
        )
    if wanted.most_free:
        return max(subnets, key=lambda subnet: int(subnet["AvailableIpAddressCount"]))
    if wanted.random:
        return random.choice(subnets)
    if len(subnets) > 1:
        ids = ", ".join(subnet["SubnetId"] for subnet in subnets)
        raise operation_failed(
            f"{len(subnets)} subnets match subnet_filter {shown}: {ids}",
            hint="filter more closely, or add most_free: true or random: true",
        )
    return subnets[0]


def _filters(wanted: Mapping[str, str]) -> list[Any]:
    return [{"Name": name, "Values": [text]} for name, text in wanted.items()]


def _default_vpc(client: EC2Client) -> str:
    vpcs = client.describe_vpcs(Filters=_filters({"is-default": "true"}))["Vpcs"]
    if not vpcs:
        raise operation_failed(
            "this region has no default VPC", hint="name a subnet with --subnet-id subnet-…"
        )
    return vpcs[0]["VpcId"]


def _own_address(client: EC2Client, way: str, subnets: list[Any], vpc: str) -> str:
    """The address, as a /32, under which the instances see this machine."""
    if way == "public_ip":
        return f"{public_address()}/32"
    if subnets:
        return f"{address_towards(str(subnets[0]['CidrBlock']))}/32"
    with aws.explained("the VPC could not be looked up"):
        block = client.describe_vpcs(VpcIds=[vpc])["Vpcs"][0]["CidrBlock"]
    return f"{address_towards(block)}/32"


def public_address() -> str:
    """This machine's address as AWS sees it."""
    try:
        with urllib.request.urlopen(_CHECK_IP, timeout=10) as answer:
            return str(ipaddress.ip_address(answer.read().decode().strip()))
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise operation_failed(
            f"this machine's public address is unknown ({_CHECK_IP}: {error})",
            hint="SSH is opened to this address only, never to 0.0.0.0/0",
        ) from None


def address_towards(block: str) -> str:
    """This machine's own address on the way to a private network, which its routes decide."""
    first = str(next(ipaddress.IPv4Network(block).hosts()))
    try:
        # Nothing is sent: the kernel only chooses the route.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((first, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise operation_failed(
            f"this machine has no way to the private addresses of {block}: {error}",
            hint="build from a machine inside the VPC, or with --ssh-interface session_manager",
        ) from None


# EC2's and its fleets' answers to a launch for which there is no capacity just now, or no quota:
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
# A reservation that is full: https://github.com/hashicorp/terraform-provider-aws/pull/35745
_OF_THE_TYPE = ("VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "ReservationCapacityExceeded")
_NO_CAPACITY = re.compile(
    rf"\b({'|'.join(_OF_THE_TYPE)}|InsufficientInstanceCapacity|UnfulfillableCapacity"
    r"|SpotMaxPriceTooLow|InsufficientFreeAddressesInSubnet)\b"
)


@dataclass(frozen=True)
class Launch:
    """A type, the subnet in which it is tried (None: a default one), and the capacity reservation
    that it goes into."""

    instance_type: str
    subnet_id: str | None
    reservation: str | None = None

    def __str__(self) -> str:
        return f"{self.instance_type}{f' in {self.subnet_id}' if self.subnet_id else ''}"

    def tried(self, stage: Literal["bake", "verify"], account: Account, answer: str) -> Try:
        """This launch with EC2's answer when it had no capacity; "" if it had."""
        market = self.reservation or ("spot" if account.spot else "on-demand")
        return Try(stage, self.instance_type, self.subnet_id, market, answer)


@dataclass(frozen=True)
class Try:
    """A launch that EC2 was asked for. `market` is on-demand, spot or the id of a capacity
    reservation, `answer` EC2's when it had no capacity; "" if it had."""

    stage: Literal["bake", "verify"]
    instance_type: str
    subnet_id: str | None
    market: str
    answer: str


def launches(
    account: Account, target: Target, types: Sequence[str], subnets: Sequence[str | None]
) -> list[Launch]:
    """All launches in the order in which they are tried: a type in each subnet, then the next.

    Instances of the type that the settings' reservation is for go into it, so only into subnets of
    its availability zone.
    """
    wanted = account.capacity_reservation_id
    reservation = _active(wanted, target) if wanted else None
    launches: list[Launch] = []
    for kind in types:
        if reservation and kind == reservation["InstanceType"]:
            inside = _in_zone(reservation, target, subnets)
            launches += [Launch(kind, subnet, wanted) for subnet in inside]
        else:
            launches += [Launch(kind, subnet) for subnet in subnets]
    return launches


def _active(wanted: str, target: Target) -> Any:
    with aws.explained(f"{wanted} could not be looked up in {target.region}"):
        answer = aws.ec2(target).describe_capacity_reservations(CapacityReservationIds=[wanted])
    for reservation in answer["CapacityReservations"]:
        if reservation["State"] == "active":
            return reservation
    raise operation_failed(
        f"{wanted} is not an active capacity reservation in {target.region}",
        hint="aws ec2 describe-capacity-reservations lists the account's",
    )


def _in_zone(reservation: Any, target: Target, subnets: Sequence[str | None]) -> list[str]:
    """The subnets in the reservation's zone; the default one of the zone if none is named."""
    # A zone's name differs from account to account, and a reservation may be another account's.
    zone = reservation["AvailabilityZoneId"]
    named = [subnet for subnet in subnets if subnet is not None]
    default = {"availability-zone-id": zone, "default-for-az": "true"}
    wanted: dict[str, Any] = {"SubnetIds": named} if named else {"Filters": _filters(default)}
    with aws.explained("the subnets could not be looked up"):
        answer = aws.ec2(target).describe_subnets(**wanted)
    zones = {subnet["SubnetId"]: subnet["AvailabilityZoneId"] for subnet in answer["Subnets"]}
    inside = [subnet for subnet in named or zones if zones.get(subnet) == zone]
    if inside:
        return inside
    where = ", ".join(f"{subnet} ({zones.get(subnet)})" for subnet in named)
    raise operation_failed(
        f"{reservation['CapacityReservationId']} is in {reservation['AvailabilityZone']} ({zone}), "
        f"and no subnet of the settings is: {where or 'no default one'}",
        hint="name a subnet of that zone: aws ec2 describe-subnets --filters "
        f"Name=availability-zone-id,Values={zone}",
    )


def no_capacity(answer: str) -> bool:
    """Return True if an error of EC2 says that another launch may succeed."""
    return bool(_NO_CAPACITY.search(answer) or message("ec2", "not_in_zone").search(answer))


def launches_left(left: Sequence[Launch], answer: str) -> list[Launch]:
    """The launches left to try after this answer to the first. A quota and the free capacity of a
    reservation do not depend on the subnet, so one refusal drops every launch of that type."""
    tried, *rest = left
    if any(code in answer for code in _OF_THE_TYPE):
        return [pool for pool in rest if pool.instance_type != tried.instance_type]
    return rest
