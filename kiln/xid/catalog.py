"""The Xid catalog: explained, and written from kiln/facts/knowledge/xid.yaml.

`./invoke generate` writes catalog.json, which ships on the AMI, and docs/xid.md.
"""

from __future__ import annotations

import json
import re
from typing import Any

from kiln.base.errors import KilnError
from kiln.base.paths import ROOT, runtime_module
from kiln.base.templates import render
from kiln.facts import table

CATALOG = ROOT / "runtime" / "opt" / "kiln" / "lib" / "gpu_xid" / "catalog.json"
PAGE = ROOT / "docs" / "xid.md"

_WARNING = "Made from kiln/facts/knowledge/xid.yaml by `./invoke generate`. Do not edit."
# Few actions serve hundreds of codes: the page's table names them by a word.
_SXID_ACTIONS = {
    "watch; look for Xid 45 or 74 on the same link": "watch",
    "reset the fabric (all GPUs and NVSwitches) or reboot or replace the instance": "reset",
    "follow the Fatal or Non-fatal word of the line": "by line",
}
_ONLY_NAME = re.compile(
    r"(?:The driver's text for|Only the driver's name is known:) (NVSWITCH_\w+)\."
)


def explain_code(code: str | int) -> dict[str, Any]:
    """The catalog's entry for a code: `79`, `xid79`, `sxid 12028`.

    Keys: kind (`xid` or `sxid`), code, name, mnemonic, meaning, causes, severity, action, source,
    and optional ones (action_nvidia, nvidia, since_driver, recovery, …). A number without a kind
    is an Xid below 10000, otherwise an SXid.
    """
    module = runtime_module("gpu_xid.catalog")
    try:
        entry: dict[str, Any] = module.Catalog().explain(code)
    except module.UnknownCodeError as error:
        near = ", ".join(error.nearest)
        hint = f"nearest: {near}" if near else "for example: ./invoke xid.explain 79"
        raise KilnError(str(error), hint=hint) from None
    return entry


def catalog_text() -> str:
    """The content of catalog.json: one entry per line, so that the daemon finds a code without
    parsing all entries."""
    data = table("xid")
    entries: dict[str, Any] = {
        "about": {"schema": data["schema"], "as_of": data["as_of"], "note": _WARNING},
        "sources": data["sources"],
        "message starts": data["message_starts"],
        "recovery": data["recovery"],
        "sxid words": data["sxid_words"],
        "resolutions": data["resolutions"],
        "unknown xid": data["unknown"]["xid"],
        "unknown sxid": data["unknown"]["sxid"],
    }
    for kind in ("xid", "sxid"):
        for row in data[kind]:
            entries[f"{kind} {row['code']}"] = _shipped(row)
    for rule in data["nvlink"]:
        fields = {key: value for key, value in rule.items() if key != "xid"}
        entries.setdefault(f"nvlink {rule['xid']}", []).append(fields)
    lines = [
        f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}"
        for key, value in entries.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _shipped(row: dict[str, Any]) -> dict[str, Any]:
    """A catalog row as it ships: AWS's action, if there is one, replaces NVIDIA's."""
    entry = {key: value for key, value in row.items() if key not in ("code", "action_aws")}
    if "action_aws" in row:
        entry["action_nvidia"] = row["action"]
        entry["action"] = row["action_aws"]
    return entry


def page_text() -> str:
    """The content of docs/xid.md."""
    data = table("xid")
    return render(
        "xid/page.md.j2",
        **{name: data[name] for name in ("as_of", "xid", "recovery", "nvlink", "sources")},
        sxid=[{**row, "meaning": _ONLY_NAME.sub(r"`\1`", row["meaning"])} for row in data["sxid"]],
        warning=_WARNING,
        actions=_SXID_ACTIONS,
        cell=_cell,
    )


def _cell(text: object) -> str:
    """A text in a cell of a Markdown table."""
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
