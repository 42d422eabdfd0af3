"""The Xid catalogue: every entry is complete and sourced, and what is generated is current."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kiln.base.errors import KilnError
from kiln.base.yaml_files import read_plain
from kiln.xid import archive
from kiln.xid import catalogue as xid_catalogue


@pytest.fixture(scope="module")
def catalogue() -> dict[str, Any]:
    return json.loads(xid_catalogue.CATALOGUE.read_text())


def test_generated_files_are_what_the_knowledge_says() -> None:
    assert xid_catalogue.CATALOGUE.read_text() == xid_catalogue.catalogue_text(), (
        "./invoke generate"
    )
    assert xid_catalogue.PAGE.read_text() == xid_catalogue.page_text(), "run: ./invoke generate"


def test_every_code_has_name_meaning_severity_action_and_source(catalogue: dict[str, Any]) -> None:
    codes = {key: row for key, row in catalogue.items() if key.split()[0] in ("xid", "sxid")}
    codes.pop("sxid words")
    assert len(codes) == 177 + 421
    for key, row in codes.items():
        for field in ("name", "meaning", "severity", "action", "source"):
            assert row[field], f"{key}: {field}"
        assert row["severity"] in ("fatal", "error", "warning", "info")


def test_xids_are_known_without_a_gap(catalogue: dict[str, Any]) -> None:
    assert all(f"xid {code}" in catalogue for code in range(1, 178))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (48, "stop and start the instance"),
        (63, "stop all CUDA processes, reset the GPU"),
        (74, "nvidia-smi nvlink -e"),
        (13, "CUDA_LAUNCH_BLOCKING=1"),
        (31, "CUDA_LAUNCH_BLOCKING=1"),
    ],
)
def test_aws_actions_are_those_of_its_table(code: int, words: str) -> None:
    entry = xid_catalogue.explain_code(code)
    assert words in entry["action"]
    assert entry["action_nvidia"] != entry["action"]


def test_one_entry_stands_on_one_line_for_the_daemon(catalogue: dict[str, Any]) -> None:
    lines = xid_catalogue.CATALOGUE.read_text().splitlines()
    assert len(lines) == len(catalogue) + 2


_STOPS_WORK = re.compile(
    r"traffic stops|stops NVLink traffic|jobs? ends?|restart the virtual machine|reset all GPUs"
    r"|could not be repaired"
)


def test_what_stops_traffic_or_ends_jobs_is_an_error_whatever_its_line_says(
    catalogue: dict[str, Any],
) -> None:
    grave = {
        key: row
        for key, row in catalogue.items()
        if isinstance(row, dict)
        and _STOPS_WORK.search(f"{row.get('meaning')} {row.get('recovery')}")
    }
    assert {"sxid 12028", "sxid 11004", "sxid 19084", "xid 161"} <= set(grave)
    for key, row in grave.items():
        kind, code = key.split()
        assert row["severity"] in ("error", "fatal"), key
        if kind == "sxid" and "Non-fatal" in row.get("says", []):
            line = f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {code}, Non-fatal, Link 01 text"
            (event,) = archive.events([line])
            assert event["severity"] in ("error", "fatal"), key


def test_no_fatal_code_calls_itself_harmless(catalogue: dict[str, Any]) -> None:
    for key, row in catalogue.items():
        if isinstance(row, dict) and row.get("severity") == "fatal":
            assert "notice nothing" not in str(row.get("meaning")), key


@pytest.mark.parametrize("kind", ["xid", "sxid"])
def test_every_field_has_a_source(kind: str) -> None:
    data = read_plain(xid_catalogue.KNOWLEDGE)
    for row in data[kind]:
        fields = row.keys() - {"code", "source", "by_line", "texts", "switches"}
        assert {row["source"].get(field) for field in fields} <= data["sources"].keys(), row["code"]


def test_an_unknown_code_is_refused_with_the_nearest() -> None:
    with pytest.raises(KilnError) as caught:
        xid_catalogue.explain_code("xid 178")
    assert caught.value.exit_status == 2
    assert "Xid 177" in caught.value.hint
