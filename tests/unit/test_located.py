"""YAML with positions: what a person is told when the file is not what it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.base import located
from kiln.base.errors import KilnError

MALFORMED = {
    "an open bracket": ("a: [1, 2\nb: 3\n", "f.yaml:2:2: not valid YAML"),
    "a tab": ("a:\n\tb: 1\n", "f.yaml:2:1: not valid YAML"),
    "a key twice": ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: 'a' is a duplicate key (first at line 1"),
    "a merge key": ("a: &x {b: 1}\nc: {<<: *x}\n", "f.yaml:2:5: merge keys"),
    "a list as key": ("? [a]\n: b\n", "f.yaml:1:3: a key must be one word"),
    "two documents": ("a: 1\n---\nb: 2\n", "f.yaml:2:1: not valid YAML"),
    "a Python object": ("a: !!python/object:os.system ls\n", "f.yaml:1:4: not valid YAML"),
    "a control character": ("a: 1\nb: \x00\n", "f.yaml:2:4: not valid YAML"),
    "a tag with a value that it cannot have": ("a: !!binary Ж\n", "f.yaml:1:4: not valid YAML"),
}


def refusal(text: str) -> KilnError:
    with pytest.raises(KilnError) as caught:
        located.parse_yaml(text, "f.yaml")
    return caught.value


@pytest.mark.parametrize(("text", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_yaml_is_one_message_with_its_place(text: str, message: str) -> None:
    refused = refusal(text)
    assert refused.message.startswith(message)
    assert "\n" not in refused.message
    assert refused.exit_status == 2


@pytest.mark.parametrize("text", [text for text, _ in MALFORMED.values()], ids=MALFORMED.keys())
def test_a_program_gets_the_place_as_data(text: str) -> None:
    data = refusal(text).as_json()
    assert data["message"].startswith(f"{data['file']}:{data['line']}:{data['column']}: ")


def test_a_missing_file_is_reported_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match=r"nowhere\.yaml: no such file"):
        located.load_yaml(tmp_path / "nowhere.yaml")


def test_a_value_that_is_missing_has_its_place_behind_the_colon() -> None:
    document = located.parse_yaml("a:\n  b:  # why\n  c: ''\nd:\n", "f.yaml")
    assert document.at(("a", "b")) == "f.yaml:2:5"
    assert document.at(("a", "c")) == "f.yaml:3:6"
    assert document.at(("d",)) == "f.yaml:4:3"


def test_an_alias_is_the_value_that_it_names() -> None:
    document = located.parse_yaml("a: &x [1]\nb: *x\n", "f.yaml")
    assert document.data == {"a": [1], "b": [1]}
    assert document.at(("b", 0)) == "f.yaml:1:8"


def test_a_file_that_is_not_text_is_reported(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KilnError, match="cannot be read"):
        located.load_yaml(tmp_path / "f.yaml")


@pytest.mark.parametrize("text", ["580.10", "12.10", "1.0", "2026-11-21", "1e3", "510e3", "0.5"])
def test_what_looks_like_a_number_or_a_date_stays_text(text: str) -> None:
    assert located.parse_yaml(f"v: {text}\n", "f.yaml").data == {"v": text}


def test_a_number_nobody_can_count_to_stays_text() -> None:
    assert located.parse_yaml("a: " + "9" * 5000, "f.yaml").data == {"a": "9" * 5000}


def test_keys_are_text_too() -> None:
    assert located.parse_yaml("1.30: a\n5: b\ntrue: c\n", "f.yaml").data == {
        "1.30": "a",
        "5": "b",
        "true": "c",
    }


def test_whole_numbers_booleans_and_nothing_are_themselves() -> None:
    assert located.parse_yaml("a: 3\nb: true\nc:\n", "f.yaml").data == {
        "a": 3,
        "b": True,
        "c": None,
    }


def test_every_value_and_key_has_a_place() -> None:
    document = located.parse_yaml("a:\n  - {b: x}\n", "f.yaml")
    assert document.at(("a", 0, "b")) == "f.yaml:2:9"
    assert str(document.key_place(("a", 0, "b"))) == "f.yaml:2:6"
    assert document.at(("a", 0, "missing")) == "f.yaml:2:5"
    assert document.at(("nowhere",)) == "f.yaml:1:1"
