"""The Xid catalog: every entry is complete and sourced, and no severity is too mild."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kiln.facts import table
from kiln.xid import archive
from kiln.xid import catalog as xid_catalog


@pytest.fixture(scope="module")
def codes() -> dict[str, Any]:
    catalog = json.loads(xid_catalog.CATALOG.read_text())
    found = {key: row for key, row in catalog.items() if key.split()[0] in ("xid", "sxid")}
    found.pop("sxid words")
    return found


def test_every_code_is_known_whole_and_with_a_source(codes: dict[str, Any]) -> None:
    assert len(codes) == 177 + 421
    assert all(f"xid {code}" in codes for code in range(1, 178))
    for key, row in codes.items():
        for field in ("name", "meaning", "severity", "action", "source"):
            assert row[field], f"{key}: {field}"
        assert row["severity"] in ("fatal", "error", "warning", "info")
        if row["severity"] == "fatal":
            assert "notice nothing" not in row["meaning"], key
    data = table("xid")
    for row in [*data["xid"], *data["sxid"]]:
        fields = row.keys() - {"code", "source", "by_line", "texts", "switches"}
        assert {row["source"].get(field) for field in fields} <= data["sources"].keys(), row["code"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (48, "stop and start the instance"),
        (63, "stop all CUDA processes, reset the GPU"),
        (74, "nvidia-smi nvlink -e"),
        (13, "CUDA_LAUNCH_BLOCKING=1"),
    ],
)
def test_action_of_aws_goes_before_nvidias(code: int, words: str) -> None:
    entry = xid_catalog.explain_code(code)
    assert words in entry["action"]
    assert entry["action_nvidia"] != entry["action"]


_STOPS_WORK = re.compile(
    r"traffic stops|stops NVLink traffic|jobs? ends?|restart the virtual machine|reset all GPUs"
    r"|could not be repaired"
)


def test_code_that_stops_work_is_an_error_whatever_its_line_says(codes: dict[str, Any]) -> None:
    grave = {
        key: row
        for key, row in codes.items()
        if _STOPS_WORK.search(f"{row.get('meaning')} {row.get('recovery')}")
    }
    assert {"sxid 12028", "sxid 11004", "sxid 19084", "xid 161"} <= set(grave)
    for key, row in grave.items():
        kind, code = key.split()
        assert row["severity"] in ("error", "fatal"), key
        if kind == "sxid" and "Non-fatal" in row.get("says", []):
            line = f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {code}, Non-fatal, Link 01 text"
            (event,) = archive.events([line])
            assert event["severity"] in ("error", "fatal"), key
