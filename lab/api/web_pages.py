"""Rejects requests of web pages, which can make a browser send them to 127.0.0.1."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

# The names of AWS's endpoints: nobody but AWS decides where they lead.
_AWS_HOST = re.compile(r"([a-z0-9-]+\.)+(amazonaws\.com(\.cn)?|api\.aws)")


def sent_by_page(environ: Mapping[str, Any], own_addresses: Sequence[str]) -> str:
    """Return why a request looks as if a web page had sent it; "" when it does not.

    `own_addresses` are the lab's addresses besides loopback.
    """
    if "HTTP_ORIGIN" in environ:
        return "the lab rejects requests of web pages (with an Origin)"
    name = _host_name(environ.get("HTTP_HOST", ""))
    if not _leads_here(name, own_addresses):
        return f"{name or 'an empty name'} is not a name of this lab"
    return ""


def _host_name(host: str) -> str:
    """The name in a Host header, without the port and in lower case."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]*)(:[0-9]*)?", host.strip())
    return match.group(1).strip("[]").lower().rstrip(".") if match else ""


def _leads_here(name: str, own_addresses: Sequence[str]) -> bool:
    """Return True if a name leads to the lab by itself, and not because of somebody's DNS entry."""
    if name in own_addresses or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return bool(_AWS_HOST.fullmatch(name))
