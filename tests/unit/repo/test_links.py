"""Links of the documentation: a broken one is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from devel import links


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[other](docs/other.md) ![](docs/other.md)\n", ""),
        ("# Page\n\nsee\n[it](docs/gone.md)\n", "page.md:4: docs/gone.md: no such file"),
        ("[a](docs/other.md#nvidia-smi--l-and-others)\n", ""),
        ("[a](docs/other.md#in-code)\n", "page.md:1: docs/other.md#in-code: no such heading"),
        ("`[a](b)`\n\n```\n[a](b)\n```\n", ""),
        ("[a](http://example.com/)\n", "page.md:1: http://example.com/: not https"),
    ],
)
def test_broken_link_is_named_with_its_line(text: str, broken: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    other = "# Other\n## `nvidia-smi` -L, and others\n```\n# In code\n```\n"
    (tmp_path / "docs" / "other.md").write_text(other)
    page = tmp_path / "page.md"
    page.write_text(text)
    assert "\n".join(links.broken(page, tmp_path)) == broken
