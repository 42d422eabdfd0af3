"""Text for a terminal: no control character, no change of direction."""

from __future__ import annotations

import ast
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from kiln.base.paths import ROOT
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


def test_only_output_and_progress_write_to_the_terminal() -> None:
    """ruff rejects `print` in kiln/ but in cli/output.py; this finds the other ways."""
    writers = set()
    for path in (ROOT / "kiln").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(
                ("sys.stdout.write", "sys.stderr.write", "self._out.write")
            ):
                writers.add(path.relative_to(ROOT).as_posix())
    assert writers == {"kiln/base/progress.py"}
