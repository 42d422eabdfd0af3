"""Where a run's instances are launched, and how this machine reaches them."""

from __future__ import annotations

import ipaddress
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.base.account import Account, SubnetFilter
from kiln.base.errors import operation_failed
from kiln.cloud import aws, session
from kiln.cloud.target import Target

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

SESSION_MANAGER = "session_manager"
# Packer requires an ingress rule; Session Manager needs none.
NOBODY = "127.0.0.1/32"
# What to look at when an instance does not answer, by how it is reached.
_WAYS = {
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
    """A run's subnet (None: EC2 takes a default one) and VPC; how its instances are reached: by
    their public address, their private one, or Session Manager; who may reach SSH on them."""

    subnet_id: str | None
    vpc_id: str
    ssh_interface: str
    source_cidrs: tuple[str, ...]
    # Where to launch when EC2 has no capacity in `subnet_id`, in order.
    more_subnets: tuple[str, ...] = ()

    @property
    def subnets(self) -> tuple[str | None, ...]:
        """All of them, in the order in which they are tried."""
        return (self.subnet_id, *self.more_subnets)

    @property
    def by_session(self) -> bool:
        """Is it Session Manager, which needs no open port?"""
        return self.ssh_interface == SESSION_MANAGER

    @property
    def hint(self) -> str:
        """What to look at when an instance does not answer."""
        return _WAYS[self.ssh_interface]


def find_network(account: Account, target: Target) -> Network:
    """The network of a build's settings.

    A subnet that gives no public addresses is reached from inside. Raises KilnError (exit status 1)
    if AWS refuses, if no subnet or several fit, or if this machine's address is unknown.
    """
    client = aws.ec2(target)
    with aws.explained("the subnet could not be looked up"):
        subnets = _subnets(client, account)
        subnet = subnets[0] if subnets else None
        vpc = subnet["VpcId"] if subnet else _default_vpc(client)
    _require_alike(subnets)
    public = subnet is None or bool(subnet.get("MapPublicIpOnLaunch"))
    way = account.ssh_interface or ("public_ip" if public else "private_ip")
    if way == SESSION_MANAGER:
        session.require_plugin()
    if account.ssh_source_cidrs:
        cidrs = account.ssh_source_cidrs
    elif way == SESSION_MANAGER or account.security_group_ids:
        cidrs = (NOBODY,)
    elif way == "private_ip":
        cidrs = (target.own_cidr(_block(client, subnet, vpc)),)
    else:
        cidrs = (target.own_cidr(),)
    ids = [str(subnet["SubnetId"]) for subnet in subnets]
    return Network(ids[0] if ids else None, vpc, way, cidrs, tuple(ids[1:]))


def address_towards(block: str) -> str:
    """This machine's own address on the way to a network, which its routes decide.

    Raises KilnError (exit status 1) if there is no way.
    """
    import socket

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


def _subnets(client: EC2Client, account: Account) -> list[Any]:
    """The subnets of the settings, in order; none for a default one."""
    if account.subnet_filter:
        return [_filtered(client, account.subnet_filter)]
    ids = [account.subnet_id] if account.subnet_id else list(account.subnet_ids)
    if not ids:
        return []
    subnets = {
        subnet["SubnetId"]: subnet for subnet in client.describe_subnets(SubnetIds=ids)["Subnets"]
    }
    return [subnets[subnet_id] for subnet_id in ids]


def _require_alike(subnets: list[Any]) -> None:
    """Raises KilnError (exit status 1) unless one security group and one way in serve them all."""
    for subnet in subnets[1:]:
        for key, what in (("VpcId", "VPC"), ("MapPublicIpOnLaunch", "kind of address")):
            if subnet.get(key) != subnets[0].get(key):
                raise operation_failed(
                    f"subnet_ids: {subnet['SubnetId']} has another {what} than "
                    f"{subnets[0]['SubnetId']}: {subnet.get(key)}, not {subnets[0].get(key)}",
                    hint="name subnets of one VPC that all give public addresses, or none",
                )


def _filtered(client: EC2Client, wanted: SubnetFilter) -> Any:
    filters: list[Any] = [{"Name": name, "Values": [text]} for name, text in wanted.filters.items()]
    pages = client.get_paginator("describe_subnets").paginate(Filters=filters)
    subnets: list[Any] = [subnet for page in pages for subnet in page["Subnets"]]
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


def _block(client: EC2Client, subnet: Any | None, vpc: str) -> str:
    """The addresses of the subnet, or of the whole VPC."""
    if subnet:
        return str(subnet["CidrBlock"])
    with aws.explained("the VPC could not be looked up"):
        return client.describe_vpcs(VpcIds=[vpc])["Vpcs"][0]["CidrBlock"]


def _default_vpc(client: EC2Client) -> str:
    vpcs = client.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    if not vpcs:
        raise operation_failed(
            "this region has no default VPC", hint="name a subnet with --subnet-id subnet-…"
        )
    return vpcs[0]["VpcId"]
