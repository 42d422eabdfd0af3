"""HCL that was parsed before: what is kept of it, and what happens when that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kiln.packer import hclfile, parsed_before

TEXT = 'locals {\n  a = ["x", 1, true, null, "${var.b}"]\n}\n'


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path))
    return tmp_path


def never(text: str) -> dict[str, Any]:
    raise AssertionError(f"{text!r} is parsed again")


def entries(runs: Path) -> list[Path]:
    return list((runs / ".parsed").iterdir())


def test_the_same_text_is_parsed_once(runs: Path) -> None:
    data = parsed_before.parsed(TEXT, hclfile._parse)
    assert data == hclfile._parse(TEXT)
    assert parsed_before.parsed(TEXT, never) == data


def test_another_text_is_another_entry(runs: Path) -> None:
    first = parsed_before.parsed(TEXT, hclfile._parse)
    assert parsed_before.parsed(TEXT.replace("x", "y"), hclfile._parse) != first
    assert len(entries(runs)) == 2


def test_another_parser_does_not_take_what_this_one_kept(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed_before.parsed(TEXT, hclfile._parse)
    monkeypatch.setattr(parsed_before, "_parser", lambda: b"newer")
    assert parsed_before.parsed(TEXT, lambda text: {"newer": []}) == {"newer": []}


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b"[]", b'"x"'])
def test_a_damaged_entry_is_parsed_again(runs: Path, damage: bytes) -> None:
    data = parsed_before.parsed(TEXT, hclfile._parse)
    (entry,) = entries(runs)
    entry.write_bytes(damage)
    assert parsed_before.parsed(TEXT, hclfile._parse) == data
    assert parsed_before.parsed(TEXT, never) == data


def test_the_oldest_entries_go(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsed_before, "_MOST", 3)
    for number in range(5):
        parsed_before.parsed(f"a{number}", lambda text: {text: []})
    assert len(entries(runs)) == 3
    assert parsed_before.parsed("a4", never) == {"a4": []}


def test_without_a_folder_of_runs_none_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))
    assert parsed_before.parsed(TEXT, hclfile._parse)
    assert not (tmp_path / "build").exists()
