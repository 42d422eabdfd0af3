"""The settings of an AWS account as variables of the rendered HCL."""

from __future__ import annotations

from typing import Any

from kiln.base.account import Account
from kiln.packer.program import packer_facts

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def of_account(account: Account) -> dict[str, Any]:
    """The variables that the settings alone decide; what is not set has the variable's default."""
    return {
        "tags": dict(account.tags),
        "kms_key_id": account.kms_key_id or "",
        "iam_instance_profile": account.iam_instance_profile or "",
        "spot_price": "auto" if account.spot else "",
        "proxy": account.proxy or "",
        "no_proxy": list(account.no_proxy),
        "mirrors": dict(account.mirrors),
        "time_limits": dict(account.time_limits),
    }


def time_limit(account: Account, component: str) -> float:
    """How long the component's provisioner may take, in seconds."""
    limits = account.time_limits
    limit = limits.get(component) or limits.get("all") or packer_facts()["time_limit"]
    return float(limit[:-1]) * _SECONDS[limit[-1]]


def by_hand(account: Account) -> dict[str, Any]:
    """The variables of the settings of a row, for Packer without the pipeline; only those that are
    set. `subnet_filter`, which EC2 is asked for, and further instance types are not among them."""
    values = {
        "region": account.region,
        "subnet_id": account.subnet_id,
        "security_group_ids": list(account.security_group_ids),
        "ssh_interface": account.ssh_interface,
        "ssh_source_cidrs": list(account.ssh_source_cidrs),
        "instance_type": account.instance_types[0] if account.instance_types else None,
        "capacity_reservation_id": account.capacity_reservation_id,
        **of_account(account),
    }
    return {name: value for name, value in values.items() if value}
