"""What a code means: name, severity, action. Facts come from `catalogue.json` beside this file.

That file is JSON with one entry a line, so that the daemon reads the one line it needs and
never holds 600 entries in memory. It is generated from `kiln/facts/knowledge/xid.yaml`.
"""

import os

from . import lean

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "catalogue.json")

SEVERITIES = ("info", "warning", "error", "fatal")


class Catalogue:
    """Entries by key: `xid 79`, `sxid 12028`, `nvlink 149`, `recovery`, `defaults`, …"""

    def __init__(self, path=PATH, overrides=None):
        self.path = path
        self.overrides = overrides or {}  # "xid 63" -> severity, from the configuration
        self._entries = {}
        self.plain = {}  # xid -> name, severity, action, where neither line nor driver matters

    def entry(self, key):
        """The entry or None. An unreadable catalogue never stops an event: it goes without."""
        if key not in self._entries:
            if len(self._entries) > 256:  # a flood of made-up codes must not fill the memory
                self._entries.clear()
            try:
                self._entries[key] = self._read(key)
            except (OSError, ValueError):
                return None
        return self._entries[key]

    def _read(self, key):
        start = lean.dumps(key).encode() + b":"
        with open(self.path, "rb") as lines:
            for line in lines:
                if line.startswith(start):
                    return lean.loads(line[len(start) :].strip().rstrip(b",").decode())
        return None

    def keys(self):
        """All keys, for the commands that list or search."""
        with open(self.path, encoding="utf-8") as file:
            return list(lean.loads(file.read()))

    def classify(self, fields, driver=None):
        """Add name, severity and action (and what the line itself decides) to parsed `fields`.

        driver: version of the loaded driver or None; two codes changed their meaning between
        branches, and the NVLink words were laid out anew in R575.
        """
        xid = fields.get("xid")
        if xid in self.plain:
            fields.update(self.plain[xid])
            return fields
        if xid is not None:
            key, entry = self._xid_entry(xid, driver)
        else:
            key = "sxid %d" % fields["sxid"]
            entry = self.entry(key)
        known = entry is not None
        entry = entry or self.entry("unknown " + key.partition(" ")[0]) or {}
        said = {
            "name": entry.get("name"),
            "severity": entry.get("severity", "error"),
            "action": entry.get("action"),
        }
        if "action_nvidia" in entry:
            said["action_nvidia"] = entry["action_nvidia"]
        by_line = entry.get("by_line")
        if xid is not None and known and not by_line and "before" not in entry:
            said["severity"] = self.overrides.get(key, said["severity"])
            self.plain[xid] = said
        fields.update(said)
        if by_line == "recovery":
            self._recovery(fields)
        elif by_line == "nvlink":
            self._nvlink(fields, driver)
        elif fields.get("sxid") is not None:
            self._word(fields)
        fields["severity"] = self.overrides.get(key, fields["severity"])
        return fields

    def _xid_entry(self, code, driver):
        key = "xid %d" % code
        entry = self.entry(key)
        before = entry.get("before") if entry else None
        if before and driver and _branch(driver) and _branch(driver) < before["branch"]:
            return key, dict(entry, **before)
        return key, entry

    def _recovery(self, fields):
        """Xid 154 says its action: `… changed from 0x0 (None) to 0x4 (Drain and Reset)`."""
        _, _, change = fields["message"].rpartition(" to ")
        number, _, label = change.partition(" (")
        label = label.partition(")")[0]
        for row in self.entry("recovery") or ():
            if label in row["labels"] or (not label and number == row["code"]):
                fields["recovery"] = row["labels"][0]
                fields["severity"] = row["severity"]
                fields["action"] = row["action"]
                return

    def _word(self, fields):
        """An SXid line that says Fatal, Non-fatal or Correctable is believed over the table.

        But Non-fatal does not make more of an error that the table knows to be harmless.
        """
        row = (self.entry("sxid words") or {}).get(fields.get("word") or "")
        if row and not (row["severity"] == "warning" and fields["severity"] == "info"):
            fields["severity"] = row["severity"]
            fields["action"] = row["action"]

    def _nvlink(self, fields, driver):
        """Xid 144 to 150: the rule for unit, intrinfo and error status; the line's word wins."""
        if "word" not in fields:
            return
        fields["severity"] = "fatal" if fields["word"] == "Fatal" else "warning"
        rule = nvlink_rule(self.entry("nvlink %d" % fields["xid"]) or (), fields, driver)
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


def nvlink_rule(rules, fields, driver=None):
    """The decoding rule for a parsed NVLink line, or None.

    rules: dicts with `unit` (names joined by `/`), `v1` and `v2` (32 bits, `-` is any; v2 from
    R575 on), `status` (hex). Without a driver version v1 is tried first, as the older layout
    uses more bits. An exact error status beats one that shares a bit with it.
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
            wanted = int(rule["status"], 16)
            if wanted == status:
                return rule
            if wanted & status and (shared is None or rule["severity"].startswith("Fatal")):
                shared = rule
    return shared


def _bits_match(pattern, value):
    if value >> 32:
        return False
    bits = bin(value)[2:].rjust(32, "0")
    return all(want in ("-", have) for want, have in zip(pattern, bits))  # noqa: B905


def _branch(driver):
    """`570.133.20` -> 570; None for anything else."""
    head = (driver or "").partition(".")[0]
    return int(head) if head.isdigit() else None
