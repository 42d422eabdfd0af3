"""How a run reaches its instances: a key pair of its own, and a security group."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.account import Account
from kiln.cloud import aws
from kiln.cloud.network import Network, find_network
from kiln.cloud.resources import tags
from kiln.cloud.runs import Run
from kiln.cloud.target import Target

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


@dataclass(frozen=True)
class Access:
    """Access to a run's instances: its own key pair, and a security group of its own or those that
    the settings name."""

    key_name: str
    key_file: Path
    security_groups: tuple[str, ...]
    network: Network


def make_access(run: Run, target: Target, account: Account) -> Access:
    """Create a key pair, and a security group that opens port 22 to this machine's address, as far
    as the settings do not have it otherwise.

    Raises KilnError (exit status 1) if AWS refuses, or if this machine's address is unknown.
    """
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
    groups = account.security_group_ids or (_make_group(client, run, network, account),)
    return Access(f"kiln-{run.id}", key_file, groups, network)


def _make_group(client: EC2Client, run: Run, network: Network, account: Account) -> str:
    with aws.explained("the security group could not be created"):
        group = client.create_security_group(
            GroupName=f"kiln-{run.id}",
            Description=f"AMI Kiln run {run.id}: SSH from the machine that builds",
            VpcId=network.vpc_id,
            TagSpecifications=[_tagged("security-group", run, account)],
        )["GroupId"]
        # EC2 may not know a new group for some seconds, neither here nor at a launch:
        # https://github.com/hashicorp/packer/pull/6843
        client.get_waiter("security_group_exists").wait(
            GroupIds=[group], WaiterConfig={"Delay": 2, "MaxAttempts": 15}
        )
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


def forget_key(run: Run) -> None:
    """Delete the private key of a run from this machine."""
    shutil.rmtree(run.folder / "ssh", ignore_errors=True)


def _tagged(kind: Any, run: Run, account: Account) -> Any:
    return {"ResourceType": kind, "Tags": tags(run.id, **account.tags, Name=f"kiln-{run.id}")}
