"""Process names that nobody expects. Damaged logs are in runtime/test_fuzz.py."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kiln.base import paths
from tests.unit.searches import examples

parse = paths.runtime_module("gpu_xid.parse")


@examples(60)
@given(
    st.text(min_size=1, max_size=15).filter(lambda name: not name.startswith("'")),
    st.integers(0, 2**22),
)
def test_hostile_process_name_changes_neither_code_nor_address(name: str, pid: int) -> None:
    text = f"NVRM: Xid (PCI:0000:3b:00): 31, pid={pid}, name={name}, Ch 00000008"
    fields = parse.parse_message(text)
    assert (fields["xid"], fields["pci"], fields["pid"]) == (31, "0000:3b:00", pid)
