"""YAML: the places of values and keys, and what is not taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.base import yaml_files
from kiln.base.errors import KilnError

MALFORMED = [
    ("a: [1, 2\nb: 3\n", "f.yaml:2:2: not valid YAML"),
    ("a:\n\tb: 1\n", "f.yaml:2:1: not valid YAML"),
    ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: not valid YAML: 'a' is a duplicate key (first at line 1"),
    ("a: &x {b: 1}\nc: {<<: *x}\n", "f.yaml:2:5: not valid YAML: a key must be one word"),
    ("? [a]\n: b\n", "f.yaml:1:3: not valid YAML: a key must be one word"),
    ("a: 1\n---\nb: 2\n", "f.yaml:2:1: not valid YAML"),
    ("a: &x [*x]\n", "f.yaml:1:4: not valid YAML: this value contains itself"),
    ("a: !!python/object:os.system ls\n", "f.yaml:1:4: not valid YAML"),
    ("a: 1\nb: \x00\n", "f.yaml"),
    ("a: " + "[" * 5000 + "]" * 5000, "f.yaml"),
]


@pytest.mark.parametrize(("text", "message"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_yaml_names_its_place(text: str, message: str) -> None:
    with pytest.raises(KilnError) as caught:
        yaml_files.parse_yaml(text, "f.yaml")
    assert caught.value.message.startswith(message)
    assert "\n" not in caught.value.message
    assert caught.value.to_dict()["file"] == "f.yaml"
    assert caught.value.exit_status == 2


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KilnError, match=r"nowhere\.yaml: cannot be read: No such file"):
        yaml_files.load_yaml(tmp_path / "nowhere.yaml")
    (tmp_path / "f.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KilnError, match="cannot be read"):
        yaml_files.load_yaml(tmp_path / "f.yaml")


def test_every_value_and_key_has_a_place() -> None:
    document = yaml_files.parse_yaml("a:\n  - {b: x}\nc:  # why\nd: &x [1]\ne: *x\n", "f.yaml")
    assert str(document.place(("a", 0, "b"))) == "f.yaml:2:9"
    assert str(document.key_place(("a", 0, "b"))) == "f.yaml:2:6"
    assert str(document.place(("a", 0, "missing"))) == "f.yaml:2:5"
    assert str(document.place(("nowhere",))) == "f.yaml:1:1"
    assert str(document.place(("c",))) == "f.yaml:3:3"
    assert str(document.place(("e", 0))) == "f.yaml:4:8"
    assert document.data["e"] == [1]


def test_numbers_and_dates_stay_text() -> None:
    for text in ("580.10", "12.10", "1.0", "2026-11-21", "1e3", "510e3", "0.5"):
        assert yaml_files.parse_yaml(f"v: {text}\n", "f.yaml").data == {"v": text}
    keys = yaml_files.parse_yaml("1.30: 3\n5: true\ntrue:\n", "f.yaml").data
    assert keys == {"1.30": 3, "5": True, "true": None}


def test_plain_data_keeps_versions_as_text_on_demand() -> None:
    text = "a: 580.10\nb: 2026-01-01\n"
    plain = yaml_files.parse_plain(text, "x", versions_as_text=True)
    assert plain == {"a": "580.10", "b": "2026-01-01"}
    assert yaml_files.parse_plain("a: 0.5\n", "x") == {"a": 0.5}


def test_template_is_read_in_its_long_form() -> None:
    text = "a: !Ref b\nc: !GetAtt [d, !Sub e]\n"
    found = yaml_files.parse_template(text)
    assert found == {"a": {"Ref": "b"}, "c": {"Fn::GetAtt": ["d", {"Fn::Sub": "e"}]}}
    with pytest.raises(KilnError, match=r"x\.yaml:1:4: .*!Ref"):
        yaml_files.parse_plain(text, "x.yaml")
