"""Meaning of a code: name, severity, action. The facts are in `catalog.json` beside this file,
which is generated from `kiln/facts/knowledge/xid.yaml`."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # the module typing would cost the monitor 0.7 MiB
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "catalog.json")

SEVERITIES = ("info", "warning", "error", "fatal")


class UnknownCodeError(ValueError):
    """Unknown code. `nearest`: the nearest known codes, such as `Xid 79`."""

    def __init__(self, message: str, nearest: Iterable[str] = ()) -> None:
        ValueError.__init__(self, message)
        self.nearest = list(nearest)


class Catalog:
    """Entries by key: `xid 79`, `sxid 12028`, `nvlink 149`, `recovery`, …"""

    def __init__(self, overrides: dict[str, str] | None = None, path: str = PATH) -> None:
        self.overrides = overrides or {}  # "xid 63" -> severity, from the configuration
        self.path = path
        self._read: dict[str, Any] = {}

    def entry(self, key: str) -> Any:
        """Return the entry, or None; also None, so that events are logged, for a damaged file.

        The file has an entry a line: the monitor keeps the few that it has met, not all 600.
        """
        if key not in self._read:
            if len(self._read) > 256:  # invented codes must not fill the memory
                self._read.clear()
            start = json.dumps(key).encode() + b":"
            try:
                with open(self.path, "rb") as lines:
                    line = next((line for line in lines if line.startswith(start)), start + b"null")
                self._read[key] = json.loads(line[len(start) :].strip().rstrip(b",").decode())
            except (OSError, ValueError):
                return None
        return self._read[key]

    def explain(self, code: object) -> dict[str, Any]:
        """Return the entry of `79`, `xid79`, `SXid 12028` with its `kind` and `code`.

        A bare number below 10000 is an Xid, others are SXids. Raises UnknownCodeError.
        """
        text = str(code).strip().lower()
        word = text[: len(text) - len(text.lstrip("sxid"))]
        digits = text[len(word) :].lstrip(" :-_#") if word else text
        if word not in ("", "xid", "sxid") or not (digits.isdecimal() and len(digits) < 10):
            raise UnknownCodeError(f"{str(code)!r} is not an Xid; write 79, xid79 or sxid 12028")
        number = int(digits)
        kind = word or ("xid" if number < 10000 else "sxid")
        entry = self.entry(f"{kind} {number}")
        if entry is None:
            label = {"xid": "Xid", "sxid": "SXid"}[kind]
            with open(self.path, encoding="utf-8") as file:
                parts = [key.partition(" ") for key in json.load(file)]
            known = [int(end) for start, _, end in parts if start == kind and end.isdecimal()]
            near = sorted(known, key=lambda other: (abs(other - number), other))[:3]
            raise UnknownCodeError(
                f"{label} {number} is not in the catalog",
                [f"{label} {other}" for other in sorted(near)],
            )
        return dict({"kind": kind, "code": number}, **entry)

    def classify(self, fields: dict[str, Any], driver: str | None = None) -> dict[str, Any]:
        """Add name, severity, action and what the line itself decides to parsed `fields`.

        driver: version of the loaded driver or None. The meaning of two codes depends on the driver
        branch, and R575 changed the layout of the NVLink words.
        """
        kind = "sxid" if fields.get("sxid") is not None else "xid"
        number = fields[kind] if fields.get(kind) is not None else fields.get("implied_xid")
        key = f"{kind} {number}"
        entry = self.entry(key) or self.entry("unknown " + kind) or {}
        before = entry.get("before")
        branch = _branch(driver)
        if before and branch and branch < before["branch"]:
            entry = dict(entry, **before)
        fields["name"] = entry.get("name")
        fields["severity"] = entry.get("severity", "error")
        fields["action"] = entry.get("action")
        if "action_nvidia" in entry:
            fields["action_nvidia"] = entry["action_nvidia"]
        by_line = entry.get("by_line")
        if by_line == "recovery":
            self._recovery(fields)
        elif by_line == "nvlink":
            self._nvlink(fields, driver)
        elif kind == "sxid":
            self._word(fields, entry)
        fields["severity"] = self.overrides.get(key, fields["severity"])
        return fields

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
    """Return the decoding rule for a parsed NVLink line, or None.

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
