"""The count of code lines that `./invoke lint` prints."""

from __future__ import annotations

import pytest

from devel import code_lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", 0),
        ('"""Words."""\n\n# why\nX = 1  # one\n', 1),
        ('def f():\n    """Words\n    and words."""\n    return (\n        1,\n\n    )\n', 4),
        ('X = """a\n\nb"""\n', 3),
    ],
)
def test_blank_comment_and_docstring_lines_do_not_count(text: str, lines: int) -> None:
    assert code_lines.python_lines(text) == lines


def test_comments_of_shell_and_jinja_do_not_count() -> None:
    assert code_lines.other_lines("#!/bin/bash\n\n# why\necho a # b\n{# a note #}\n{{ x }}\n") == 2
