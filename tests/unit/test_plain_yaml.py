"""Our own YAML files: duplicate keys are refused, and no file is read another way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kiln.base import located, plain_yaml
from kiln.base.errors import KilnError
from kiln.base.paths import KNOWLEDGE, ROOT


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "b: {a: 1, a: 2}\n", "- c: [{a: 1, a: }]\n"])
def test_a_duplicate_key_is_refused_by_both_readers(text: str) -> None:
    for parse in (plain_yaml.parse_plain, located.parse_yaml):
        with pytest.raises(KilnError, match=r"x\.yaml:\d+:\d+: .*'a' is a duplicate key"):
            parse(text, "x.yaml")


def test_a_knowledge_file_with_a_duplicate_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "drivers.yaml"
    text = (KNOWLEDGE / "drivers.yaml").read_text()
    key = re.findall(r"^([a-z_]+):", text, re.M)[-1]
    path.write_text(f"{text}\n{key}: []\n")
    with pytest.raises(KilnError, match=rf"drivers\.yaml:\d+:1: .*'{key}' is a duplicate key"):
        plain_yaml.read_plain(path)


def test_versions_and_dates_stay_text_where_they_are_asked_to() -> None:
    assert plain_yaml.parse_plain("a: 580.10\nb: 2026-01-01\n", "x", versions_as_text=True) == {
        "a": "580.10",
        "b": "2026-01-01",
    }
    assert plain_yaml.parse_plain("a: 0.5\n", "x") == {"a": 0.5}


def test_yaml_is_read_by_these_two_modules_alone() -> None:
    readers = {
        path.relative_to(ROOT).as_posix()
        for folder in ("kiln", "lab", "devel")
        for path in (ROOT / folder).rglob("*.py")
        # What runs in a guest has the guest's modules, and none of these.
        if "standins" not in path.parts
        and re.search(r"\byaml\.(safe_)?load|YAML\(", path.read_text())
    }
    assert readers == {"kiln/base/plain_yaml.py", "kiln/base/located.py"}


def test_local_tags_mean_what_their_reader_says_and_are_refused_otherwise() -> None:
    text = "a: !Ref b\nc: !GetAtt [d, !Sub e]\n"
    found = plain_yaml.parse_plain(text, "x.yaml", tagged=lambda tag, value: {tag: value})
    assert found == {"a": {"Ref": "b"}, "c": {"GetAtt": ["d", {"Sub": "e"}]}}
    with pytest.raises(KilnError, match=r"x\.yaml:1:4: .*!Ref"):
        plain_yaml.parse_plain(text, "x.yaml")
