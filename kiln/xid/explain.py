"""The Xid catalogue on any machine: the code that ships on the AMI, behind typed functions."""

from __future__ import annotations

from typing import Any

from kiln.base import runtime_import
from kiln.base.errors import KilnError


def explain_code(code: str | int) -> dict[str, Any]:
    """The catalogue's entry for a code: `79`, `xid79`, `sxid 12028`.

    Keys: kind (`xid` or `sxid`), code, name, mnemonic, meaning, causes, severity, action, source,
    and optional ones (action_nvidia, nvidia, since_driver, recovery, …). A number without a kind
    is an Xid below 10000, otherwise an SXid.
    Raises KilnError (exit status 2) for an invalid or unknown code, with the nearest ones.
    """
    module = runtime_import.runtime_module("gpu_xid.catalogue")
    try:
        entry: dict[str, Any] = module.Catalogue().explain(code)
    except module.UnknownCodeError as error:
        near = ", ".join(error.nearest)
        hint = f"nearest: {near}" if near else "for example: ./invoke xid.explain 79"
        raise KilnError(str(error), hint=hint) from None
    return entry


def printable_line(text: str) -> str:
    """A text from a kernel log without terminal control characters."""
    shown: str = runtime_import.runtime_module("gpu_xid.cli").printable(text)
    return shown
