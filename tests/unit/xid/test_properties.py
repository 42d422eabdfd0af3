"""Whatever a kernel log, an archive or a process name holds: no crash. See runtime/test_fuzz.py."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from kiln.base import paths
from kiln.base.paths import ROOT
from kiln.xid import archive
from tests.unit.searches import examples

kmsg = paths.runtime_module("gpu_xid.kmsg")
parse = paths.runtime_module("gpu_xid.parse")
CORPUS = ROOT / "tests/data/xid/lines.jsonl"
LINES = [json.loads(line)["line"] for line in CORPUS.read_text().splitlines()]
PIECES = (
    *("NVRM: Xid (", "PCI:", "0000:3b:00", "): ", "79", ", ", "pid=", "name=", "'<unknown>'"),
    *(
        "nvidia-nvswitch0: SXid (",
        "Fatal",
        "Link ",
        "Data {",
        "\\x0a",
        "\\x",
        "\n",
        "\x00",
        "GPU-I:",
    ),
    *(" caused by previous Xid ", "9" * 40, "é", "\ud7ff", "[", "]", "0x", '{"log":"', '"}', ";"),
    *('{"event":"xid","raw":"', '"MESSAGE" : "', "message repeated 3 times: [ "),
)


@examples(100)
@given(st.lists(st.one_of(st.text(max_size=60), st.sampled_from([*PIECES, *LINES])), max_size=8))
def test_any_text_is_parsed_or_refused(parts: list[str]) -> None:
    text = "".join(parts)
    list(archive.events([text]))
    fields = parse.parse_message(text)
    if fields is not None and fields["kind"] in ("xid", "sxid"):
        assert isinstance(fields[fields["kind"]], int)
        assert fields["pci"] == parse.pci_address(fields["pci"])


@examples(60)
@given(st.binary(max_size=200))
def test_any_bytes_after_a_kmsg_header_are_a_text(raw: bytes) -> None:
    assert isinstance(kmsg.decode((b"4,1,2,-;" + raw).decode("utf-8", "replace"))[3], str)


@examples(60)
@given(
    st.text(min_size=1, max_size=15).filter(lambda name: not name.startswith("'")),
    st.integers(0, 2**22),
)
def test_hostile_process_name_changes_neither_code_nor_address(name: str, pid: int) -> None:
    text = f"NVRM: Xid (PCI:0000:3b:00): 31, pid={pid}, name={name}, Ch 00000008"
    fields = parse.parse_message(text)
    assert (fields["xid"], fields["pci"], fields["pid"]) == (31, "0000:3b:00", pid)
