"""What a code means: name, severity, action. The facts are in `catalogue.json` beside this file.

That file is JSON with one entry per line, so that the daemon reads only the line it needs and
never holds 600 entries in memory. It is generated from `kiln/facts/knowledge/xid.yaml`.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # the module typing would cost the daemon 0.7 MiB
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "catalogue.json")

SEVERITIES = ("info", "warning", "error", "fatal")


class Catalogue:
    """Entries by key: `xid 79`, `sxid 12028`, `nvlink 149`, `recovery`, `defaults`, …"""

    def __init__(self, path: str = PATH, overrides: dict[str, str] | None = None) -> None:
        self.path = path
        self.overrides = overrides or {}  # "xid 63" -> severity, from the configuration
        self._entries: dict[str, Any] = {}
        # Xid -> name, severity, action, where neither the line nor the driver version matters.
        self.plain: dict[int, dict[str, Any]] = {}

    def entry(self, key: str) -> Any:
        """The entry or None; also None, so that events are still logged, if it cannot be read."""
        if key not in self._entries:
            if len(self._entries) > 256:  # invented codes must not fill the memory
                self._entries.clear()
            try:
                self._entries[key] = self._read(key)
            except (OSError, ValueError):
                return None
        return self._entries[key]

    def _read(self, key: str) -> Any:
        start = json.dumps(key).encode() + b":"
        with open(self.path, "rb") as lines:
            for line in lines:
                if line.startswith(start):
                    return json.loads(line[len(start) :].strip().rstrip(b",").decode())
        return None

    def keys(self) -> list[str]:
        """All keys, for commands that list or search."""
        with open(self.path, encoding="utf-8") as file:
            return list(json.loads(file.read()))

    def classify(self, fields: dict[str, Any], driver: str | None = None) -> dict[str, Any]:
        """Add name, severity, action and what the line itself decides to parsed `fields`.

        driver: version of the loaded driver or None. The meaning of two codes depends on the driver
        branch, and R575 changed the layout of the NVLink words.
        """
        xid = fields.get("xid")
        if xid in self.plain:
            fields.update(self.plain[xid])
            return fields
        if xid is not None:
            key, entry = self._xid_entry(xid, driver)
        else:
            key = "sxid {}".format(fields["sxid"])
            entry = self.entry(key)
        known = entry is not None
        entry = entry or self.entry("unknown " + key.partition(" ")[0]) or {}
        facts = {
            "name": entry.get("name"),
            "severity": entry.get("severity", "error"),
            "action": entry.get("action"),
        }
        if "action_nvidia" in entry:
            facts["action_nvidia"] = entry["action_nvidia"]
        by_line = entry.get("by_line")
        if xid is not None and known and not by_line and "before" not in entry:
            facts["severity"] = self.overrides.get(key, facts["severity"])
            self.plain[xid] = facts
        fields.update(facts)
        if by_line == "recovery":
            self._recovery(fields)
        elif by_line == "nvlink":
            self._nvlink(fields, driver)
        elif fields.get("sxid") is not None:
            self._word(fields, entry)
        fields["severity"] = self.overrides.get(key, fields["severity"])
        return fields

    def _xid_entry(self, code: int, driver: str | None) -> tuple[str, Any]:
        key = f"xid {code}"
        entry = self.entry(key)
        before = entry.get("before") if entry else None
        if before and driver and _branch(driver) and _branch(driver) < before["branch"]:
            return key, dict(entry, **before)
        return key, entry

    def _recovery(self, fields: dict[str, Any]) -> None:
        """Xid 154 names its action: `… changed from 0x0 (None) to 0x4 (Drain and Reset)`.

        The number decides: the label differs between driver branches.
        """
        _, to, change = fields["message"].rpartition(" to ")
        number, _, label = change.partition(" (")
        if to:
            fields["recovery"] = label.rstrip(")") or number
        for row in self.entry("recovery") or ():
            if number == row["code"]:
                fields["recovery"] = row["labels"][0]
                fields["severity"] = row["severity"]
                fields["action"] = row["action"]

    def _word(self, fields: dict[str, Any], entry: dict[str, Any]) -> None:
        """The word Fatal, Non-fatal or Correctable in an SXid line overrides the table.

        Exceptions: Non-fatal does not raise the severity of an error that the table calls harmless,
        and does not lower that of one which stops traffic or ends jobs (`at_least`).
        """
        row = (self.entry("sxid words") or {}).get(fields.get("word") or "")
        harmless = fields["severity"] == "info"
        if row and not (row["severity"] == "warning" and (harmless or "at_least" in entry)):
            fields["severity"] = row["severity"]
            fields["action"] = row["action"]

    def _nvlink(self, fields: dict[str, Any], driver: str | None) -> None:
        """Xid 144 to 150: the rule for unit, intrinfo and error status. The line's word wins."""
        if "word" not in fields:
            return
        fields["severity"] = "fatal" if fields["word"] == "Fatal" else "warning"
        rule = nvlink_rule(self.entry("nvlink {}".format(fields["xid"])) or (), fields, driver)
        if rule is None:
            return
        fields["resolution"] = rule["resolution"]
        fields["investigate"] = rule["investigate"]
        fields["effect"] = rule["effect"]
        row = (self.entry("resolutions") or {}).get(rule["resolution"])
        if row:
            fields["action"] = row["action"]
            if fields["severity"] == "warning":
                fields["severity"] = row["severity"]


def nvlink_rule(
    rules: Iterable[dict[str, Any]], fields: dict[str, Any], driver: str | None = None
) -> dict[str, Any] | None:
    """The decoding rule for a parsed NVLink line, or None.

    rules: dicts with `unit` (names joined by `/`), `v1` and `v2` (32 bits, `-` matches both; v2
    since R575), `status` (hex). Without a driver version v1 is tried first: the older layout uses
    more bits. An equal error status beats a status that shares a bit.
    """
    intrinfo, status = fields.get("intrinfo"), fields.get("error_status")
    if intrinfo is None or status is None:
        return None
    branch = _branch(driver)
    layouts = ("v1", "v2") if branch is None else ("v1",) if branch < 575 else ("v2",)
    unit = fields["unit"]
    shared = None
    for layout in layouts:
        for rule in rules:
            if unit not in rule["unit"].split("/") and unit != rule["unit"]:
                continue
            if not _bits_match(rule[layout], intrinfo):
                continue
            status_bits = int(rule["status"], 16)
            if status_bits == status:
                return rule
            if status_bits & status and (shared is None or rule["severity"].startswith("Fatal")):
                shared = rule
    return shared


def _bits_match(pattern: str, value: int) -> bool:
    if value >> 32:
        return False
    bits = bin(value)[2:].rjust(32, "0")
    return all(expected in ("-", bit) for expected, bit in zip(pattern, bits))


def _branch(driver: str | None) -> int | None:
    """`570.133.20` -> 570; None for anything else."""
    head = (driver or "").partition(".")[0]
    return int(head) if head.isdecimal() and head.isascii() and len(head) < 10 else None
