"""YAML with positions: what a person is told when the file is not what it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.base import located
from kiln.base.errors import KilnError

MALFORMED = {
    "an open bracket": ("a: [1, 2\nb: 3\n", "f.yaml:2:2: not valid YAML"),
    "a tab": ("a:\n\tb: 1\n", "f.yaml:2:1: not valid YAML"),
    "a key twice": ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: 'a' stands twice (first at line 1"),
    "a merge key": ("a: &x {b: 1}\nc: {<<: *x}\n", "f.yaml:2:5: merge keys"),
    "a list as key": ("? [a]\n: b\n", "f.yaml:1:3: a key must be one word"),
    "two documents": ("a: 1\n---\nb: 2\n", "f.yaml:2:1: not valid YAML"),
    "a Python object": ("a: !!python/object:os.system ls\n", "f.yaml:1:4: not valid YAML"),
    "an alias inside itself": ("a: &a [*a]\n", "f.yaml: it is nested too deep"),
    "more brackets than libyaml's own stack can bear": (
        "a: " + "[" * 100000,
        "f.yaml: it is nested too deep",
    ),
    "more dashes than that": ("a:\n- " + "- " * 50000 + "x\n", "f.yaml: it is nested too deep"),
    "a thousand brackets": ("a: " + "[" * 3000 + "]" * 3000, "f.yaml: it is nested too deep"),
    "a control character": ("a: \x00\n", "f.yaml: not valid YAML"),
}


@pytest.mark.parametrize(("text", "said"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_yaml_is_one_message_with_its_place(text: str, said: str) -> None:
    with pytest.raises(KilnError) as caught:
        located.parse(text, "f.yaml")
    assert caught.value.message.startswith(said)
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2


def test_a_missing_file_is_said_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match=r"nowhere\.yaml: no such file"):
        located.load(tmp_path / "nowhere.yaml")


def test_a_file_that_is_no_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KilnError, match="cannot be read"):
        located.load(tmp_path / "f.yaml")


@pytest.mark.parametrize("text", ["12.10", "1.0", "2026-11-21", "1e3", "0.5"])
def test_what_looks_like_a_number_or_a_date_stays_text(text: str) -> None:
    assert located.parse(f"v: {text}\n", "f.yaml").data == {"v": text}


def test_a_number_nobody_can_count_to_stays_text() -> None:
    assert located.parse("a: " + "9" * 5000, "f.yaml").data == {"a": "9" * 5000}


def test_whole_numbers_booleans_and_nothing_are_themselves() -> None:
    assert located.parse("a: 3\nb: true\nc:\n", "f.yaml").data == {"a": 3, "b": True, "c": None}


def test_every_value_and_key_has_a_place() -> None:
    document = located.parse("a:\n  - {b: x}\n", "f.yaml")
    assert document.at(("a", 0, "b")) == "f.yaml:2:9"
    assert document.at_key(("a", 0, "b")) == "f.yaml:2:6"
    assert document.at(("a", 0, "missing")) == "f.yaml:2:5"
    assert document.at(("nowhere",)) == "f.yaml:1:1"
