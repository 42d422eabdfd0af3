"""kiln/facts/knowledge/xid.yaml → catalogue.json, which ships on the AMI, and docs/xid.md."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from kiln.base import yaml_files
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT

KNOWLEDGE = ROOT / "kiln" / "facts" / "knowledge" / "xid.yaml"
CATALOGUE = ROOT / "runtime" / "opt" / "kiln" / "lib" / "gpu_xid" / "catalogue.json"
PAGE = ROOT / "docs" / "xid.md"

_WARNING = "Made from kiln/facts/knowledge/xid.yaml by `./invoke generate`. Do not edit."


def catalogue_text(knowledge: Path = KNOWLEDGE) -> str:
    """The content of catalogue.json."""
    return catalogue_json(_read(knowledge))


def page_text(knowledge: Path = KNOWLEDGE) -> str:
    """The content of docs/xid.md."""
    return page(_read(knowledge))


@functools.cache
def _read(knowledge: Path) -> dict[str, Any]:
    data: dict[str, Any] = yaml_files.read_plain(knowledge)
    return data


def catalogue_json(data: dict[str, Any]) -> str:
    """JSON with one entry per line, so that the daemon finds a code without parsing all entries.

    Raises KilnError if a field has no source, or one that is not listed.
    """
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
            check_sources(f"{kind} {row['code']}", row, data["sources"])
            entries[f"{kind} {row['code']}"] = shipped(row)
    for rule in data["nvlink"]:
        fields = {key: value for key, value in rule.items() if key != "xid"}
        entries.setdefault(f"nvlink {rule['xid']}", []).append(fields)
    lines = [
        f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}"
        for key, value in entries.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def shipped(row: dict[str, Any]) -> dict[str, Any]:
    """A catalogue row as it ships: AWS's action, if there is one, replaces NVIDIA's."""
    entry = {key: value for key, value in row.items() if key not in ("code", "action_aws")}
    if "action_aws" in row:
        entry["action_nvidia"] = row["action"]
        entry["action"] = row["action_aws"]
    return entry


def check_sources(label: str, row: dict[str, Any], sources: dict[str, str]) -> None:
    """Raises KilnError unless every field of a row has a source from the list."""
    named = row.get("source", {})
    for field in row:
        if field in ("code", "source", "by_line", "texts", "switches"):
            continue
        if named.get(field) not in sources:
            raise KilnError(
                f"{KNOWLEDGE.name}: {label}: field {field!r} has source {named.get(field)!r}",
                hint=f"name one of: {', '.join(sources)}",
            )


def page(data: dict[str, Any]) -> str:
    """The text of docs/xid.md."""
    lines = [
        *_head(data["as_of"]),
        *_xid_table(data["xid"]),
        *_recovery_table(data["recovery"]),
        *_nvlink_table(data["nvlink"]),
        *_sxid_table(data["sxid"]),
        *["", "## Sources", ""],
        *(f"- **{name}**: {text}" for name, text in data["sources"].items()),
    ]
    return "\n".join(lines) + "\n"


def _head(as_of: str) -> list[str]:
    return [
        "# Xid and SXid codes",
        "",
        f"<!-- {_WARNING} -->",
        "",
        f"State: {as_of}. On a machine: `gpu-xid explain 79`; anywhere: "
        "`./invoke xid.explain 79`. How events are read and written: "
        "[telemetry-xid.md](telemetry-xid.md).",
        "",
        "Severity: **fatal** needs a reset, a reboot or another host; **error** cost a process its "
        "work, or nobody has published how bad it is; **warning** and **info** stop nothing. "
        "*By line* means that the kernel line itself decides.",
        "",
        "## Xid",
        "",
    ]


def _xid_table(rows: list[dict[str, Any]]) -> list[str]:
    return _table(
        ["Xid", "Name", "Meaning", "Causes", "Severity", "Action", "Source"],
        [
            [
                str(row["code"]),
                row["name"],
                row["meaning"],
                ", ".join(row.get("causes", [])),
                _severity(row),
                _action(row),
                _source(row),
            ]
            for row in rows
        ],
    )


def _recovery_table(rows: list[dict[str, Any]]) -> list[str]:
    table = _table(
        ["Code", "Words", "Severity", "Action"],
        [[row["code"], " or ".join(row["labels"]), row["severity"], row["action"]] for row in rows],
    )
    return ["", "## What an Xid 154 says", "", *table]


# Column of the page → key of a row.
_NVLINK = {
    "Xid": "xid",
    "Unit": "unit",
    "Intrinfo before R575": "v1",
    "From R575": "v2",
    "Status": "status",
    "Severity": "severity",
    "Resolution": "resolution",
    "Investigate": "investigate",
    "Effect": "effect",
}


def _nvlink_table(rows: list[dict[str, Any]]) -> list[str]:
    def cell(row: dict[str, Any], key: str) -> str:
        return f"`{row[key]}`" if key in ("v1", "v2") else str(row[key])

    table = _table(list(_NVLINK), [[cell(row, key) for key in _NVLINK.values()] for row in rows])
    return ["", "## NVLink: the words of Xid 144 to 150", "", *table]


def _sxid_table(rows: list[dict[str, Any]]) -> list[str]:
    table = _table(
        ["SXid", "Name", "Meaning", "Says", "Severity", "Action", "Source"],
        [
            [
                str(row["code"]),
                row["name"],
                _meaning(row),
                ", ".join(row.get("says", [])),
                row["severity"],
                _SXID_ACTIONS.get(row["action"], row["action"]),
                _source(row),
            ]
            for row in rows
        ],
    )
    actions = [
        f"- **{short}**: {action.removeprefix(f'{short}; ')}"
        for action, short in _SXID_ACTIONS.items()
    ]
    return ["", "## SXid (NVSwitch)", "", _SXID_HEAD, "", *actions, "", *table]


_SXID_HEAD = (
    "The word in the line (Fatal, Non-fatal, Correctable) goes before the severity here. A meaning "
    "in code type is the driver's own name of the code: nothing else is published. The actions:"
)
# Few actions serve hundreds of codes: the table names them by a word.
_SXID_ACTIONS = {
    "watch; look for Xid 45 or 74 on the same link": "watch",
    "reset the fabric (all GPUs and NVSwitches) or reboot or replace the instance": "reset",
    "follow the Fatal or Non-fatal word of the line": "by line",
}
_ONLY_NAME = re.compile(
    r"(?:The driver's text for|Only the driver's name is known:) (NVSWITCH_\w+)\."
)


def _severity(row: dict[str, Any]) -> str:
    return f"{row['severity']}, by line" if "by_line" in row else str(row["severity"])


def _action(row: dict[str, Any]) -> str:
    if "action_aws" in row:
        return f"AWS: {row['action_aws']}. NVIDIA: {row['action']}"
    return str(row["action"])


def _meaning(row: dict[str, Any]) -> str:
    meaning = _ONLY_NAME.sub(r"`\1`", row["meaning"])
    return f"{meaning} To recover, {row['recovery']}." if "recovery" in row else str(meaning)


def _source(row: dict[str, Any]) -> str:
    return ", ".join(dict.fromkeys(row["source"].values()))


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    def line(cells: list[str]) -> str:
        shown = [cell.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ") for cell in cells]
        return f"| {' | '.join(shown)} |"

    return [line(head), f"|{'---|' * len(head)}", *(line(row) for row in rows)]
