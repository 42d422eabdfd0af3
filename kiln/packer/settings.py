"""The settings of an AWS account as variables of the rendered HCL."""

from __future__ import annotations

from typing import Any

from kiln.base.account import Account


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
    }
