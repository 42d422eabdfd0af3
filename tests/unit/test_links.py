"""Links of the documentation: a broken one is named with its place."""

from pathlib import Path

import pytest

from devel import links


@pytest.fixture
def page(tmp_path: Path):
    def write(text: str, name: str = "page.md") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_a_link_to_a_file_that_is_there_is_fine(page, tmp_path):
    page("# Other\n", "docs/other.md")
    assert links.broken(page("[other](docs/other.md) ![](docs/other.md)\n"), tmp_path) == []


def test_a_link_to_a_file_that_is_not_there_is_named_with_its_line(page, tmp_path):
    result = links.broken(page("# Page\n\nsee\n[it](docs/gone.md)\n"), tmp_path)
    assert result == ["page.md:4: docs/gone.md: no such file"]


def test_a_picture_that_is_not_there_is_a_broken_link(page, tmp_path):
    result = links.broken(page('![a picture](a.svg "its title")\n'), tmp_path)
    assert result == ["page.md:1: a.svg: no such file"]


def test_a_link_is_looked_up_from_its_own_page(page, tmp_path):
    page("", "top.md")
    result = links.broken(page("[up](../top.md) [beside](top.md)\n", "docs/page.md"), tmp_path)
    assert result == ["docs/page.md:1: top.md: no such file"]


@pytest.mark.parametrize(
    "anchor", ["adding-a-version", "nvidia-smi--l-and-others", "gpu-s-and-mig-", "the-run-file"]
)
def test_anchors_are_made_of_headings_as_github_makes_them(page, tmp_path, anchor):
    page(
        "# Adding a version\n## `nvidia-smi` -L, and others\n"
        "### GPU s and MIG?!-\n# The .run file\n",
        "other.md",
    )
    assert links.broken(page(f"[a](other.md#{anchor})\n"), tmp_path) == []


def test_a_heading_that_is_not_there_is_named(page, tmp_path):
    page("# Here\n", "other.md")
    result = links.broken(page("# Page\n[a](other.md#gone) [b](#page) [c](#nowhere)\n"), tmp_path)
    assert result == [
        "page.md:2: other.md#gone: no such heading",
        "page.md:2: #nowhere: no such heading",
    ]


def test_a_comment_in_a_code_block_is_not_a_heading(page, tmp_path):
    page("```\n# Here\n```\n", "other.md")
    assert links.broken(page("[a](other.md#here)\n"), tmp_path) == [
        "page.md:1: other.md#here: no such heading"
    ]


def test_a_link_in_code_is_text(page, tmp_path):
    assert links.broken(page("`[a](b)`\n\n```\n[a](b)\n```\n"), tmp_path) == []


@pytest.mark.parametrize("target", ["http://example.com/", "https://nowhere", "ftp://example.com"])
def test_a_web_address_has_to_be_https_and_whole(page, tmp_path, target):
    assert links.broken(page(f"[a]({target})\n"), tmp_path) == [f"page.md:1: {target}: not https"]


def test_web_addresses_are_not_asked_for(page, tmp_path):
    assert links.broken(page("[a](https://example.com/gone#x) [b](mailto:a@b.c)\n"), tmp_path) == []
