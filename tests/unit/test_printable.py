"""Text for a terminal: no control character, no change of direction."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from kiln.base.vocabulary import printable


@given(st.text())
def test_nothing_that_a_terminal_executes_is_left(text: str) -> None:
    shown = printable(text)
    for character in shown:
        assert character in "\n\t" or unicodedata.category(character) not in (
            "Cc",
            "Cs",
            "Zl",
            "Zp",
        )
        assert unicodedata.bidirectional(character) not in (
            "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"
        )  # fmt: skip


def test_what_is_plain_stays_as_it_is() -> None:
    assert printable("größer → 10.5 GiB\n\t✓ 日本") == "größer → 10.5 GiB\n\t✓ 日本"
    assert printable("\x1b[31mred\x9b\r") == "\\u001b[31mred\\u009b\\u000d"
