"""gpu-mig reads mig-parted's YAML without PyYAML: the same values, or a refusal with the line."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from mig_machine import examples

from kiln.base.paths import RUNTIME
from kiln.base.runtime_import import runtime_module

miniyaml = runtime_module("gpu_mig.miniyaml")
MigError = runtime_module("gpu_mig.errors").MigError
SHIPPED = (RUNTIME / "etc/kiln/mig-config.yaml").read_text()


def read(text: str) -> object:
    return miniyaml.plain(miniyaml.loads(text, "f.yaml"))


def test_the_shipped_map_reads_as_pyyaml_reads_it():
    assert read(SHIPPED) == yaml.safe_load(SHIPPED)


@pytest.mark.parametrize("flow", [False, None, True])
def test_every_style_pyyaml_writes_the_map_in_reads_back(flow):
    data = yaml.safe_load(SHIPPED)
    assert read(yaml.safe_dump(data, default_flow_style=flow, width=60)) == data


def test_json_reads_too():
    data = yaml.safe_load(SHIPPED)
    assert read(json.dumps(data)) == data
    assert read(json.dumps(data, indent=3)) == data


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffa: 1\n",
        "--- # first\na: 1\n",
        "a: 1\n---\n",
        "a: 1\n...\n# end\n",
        '{\n\t"a": 1\n\t}\n',
    ],
    ids=["byte order mark", "start", "empty second document", "end", "tabs in JSON"],
)
def test_marks_and_tabs_that_say_nothing_are_read_over(text):
    assert read(text) == {"a": 1}


def test_true_and_false_may_be_spelled_as_yaml_spells_them():
    assert read("[true, True, TRUE, false, False, FALSE]") == [True] * 3 + [False] * 3


def test_the_advice_for_a_number_is_not_to_quote_it():
    with pytest.raises(MigError, match="0x1") as refused:
        read("count: 0x1\n")
    assert refused.value.hint.startswith("write a number in plain digits")


def test_a_value_knows_its_line():
    root = miniyaml.loads('# c\nversion: v1\nlist:\n- a\n- k: [1,\n    2]\n  m: {"x": 1}\n', "f")
    assert root.value["version"].line == 2
    items = root.value["list"].value
    assert [i.line for i in items] == [4, 5]
    assert [n.line for n in items[1].value["k"].value] == [5, 6]
    assert items[1].value["m"].value["x"].line == 7


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a: 1\na: 2\n", 2, "given twice"),
        ("a: yes\n", 1, "different things to different"),
        ("a: tRue\n", 1, "different things to different"),
        ("a: null\n", 1, "different things to different"),
        ("a: 0x20B010DE\n", 1, "different things to different"),
        ("a: 1:20\n", 1, "different things to different"),
        ("a: 1e3\n", 1, "different things to different"),
        ("a: 1.5\n", 1, "different things to different"),
        ("a: 010\n", 1, "different things to different"),
        ("a: &x 1\n", 1, "needs YAML"),
        ("a: |\n  text\n", 1, "needs YAML"),
        ("a: !!str 1\n", 1, "needs YAML"),
        ("a:\n\tb: 1\n", 2, "tab in the indentation"),
        ("a: 1\n\t", 2, "tab in the indentation"),
        ("a: 1\n\u00a0\n", 2, "expected `key: value`"),
        ('a: "\\ud83d"\n', 1, "half a character"),
        ("a: 1\n...\nb: 1\n", 3, "second document"),
        ("a: [1, 2\n", 1, "never closed"),
        ("a: 'x\n", 1, "never closed"),
        ("a: b\n  c\n", 2, "deeper"),
        ("a: b\n c: d\n", 2, "deeper"),
        ("a:\n  b: 1\n c: 2\n", 3, "deeper"),
        ("a: 1\n---\nb: 1\n", 3, "second document"),
        ("a: 1]\n", 1, "without an opening bracket"),
        ("a: [1] 2\n", 1, "text after the closing bracket"),
        ("a: {b:1}\n", 1, "space after"),
        ("just text\nand: more\n", 2, "wrong indentation"),
        ("a: 1\nb\n", 2, "expected `key: value`"),
        ("- a\nb: 1\n", 2, "wrong indentation"),
        ("a: {1: 2}\n", 1, "key must be text"),
        ("1: 2\n", 1, "not text"),
    ],
)
def test_what_it_cannot_be_sure_of_is_refused_with_the_line(text, line, says):
    with pytest.raises(MigError) as refused:
        read(text)
    assert f"f.yaml:{line}: " in refused.value.message
    assert says in refused.value.message


names = st.from_regex(r"(all-)?[1-7]g\.[1-9][0-9]?gb(\+me|\+gfx|-me|\.me)?", fullmatch=True)
texts = names | st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), max_size=12
)
scalars = st.booleans() | st.integers(-(10**6), 10**6) | texts
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(texts, documents, min_size=1, max_size=4), st.sampled_from([False, True]))
def test_what_pyyaml_writes_with_quotes_reads_back(data, flow):
    class Quoting(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

        def represent_text(self, text: str) -> yaml.Node:
            return self.represent_scalar("tag:yaml.org,2002:str", text, style='"')

    Quoting.add_representer(str, Quoting.represent_text)
    text = yaml.dump(data, Dumper=Quoting, default_flow_style=flow, width=10**9, allow_unicode=True)
    try:
        assert read(text) == data
    except MigError as refused:  # escapes only YAML knows, such as \x85 or \e
        assert "an escape" in refused.message or "complex" in refused.message or "? " in text


BODIES = [
    "a: 1", "b:", "- c", "- d: x", "-", "e: [1, 2]", "f: {g: h, i: 2}", '"j": "k"', "l: m n",
    "- - o", "p: 'q''r' # s", "# t", "", "u: 1g.5gb+me", "v: -1", "w: 1g", "x: 7", "y: y",
    "- [a, {b: c}]", "z: []", "aa: {}", "- 1.5", "- 0x1F", "- ~", "- no",
]  # fmt: skip
LINES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(BODIES)), max_size=8)


@settings(max_examples=examples(800), deadline=None)
@given(LINES)
def test_whatever_it_accepts_pyyaml_reads_the_same(lines):
    text = "".join("  " * depth + body + "\n" for depth, body in lines)
    try:
        ours = read(text)
    except MigError:
        return
    assert ours == yaml.safe_load(text)


@pytest.mark.parametrize(
    "text",
    ["[" * 9000 + "]" * 9000, "- " * 9000 + "1", "\n".join(" " * n + "a:" for n in range(3000))],
    ids=["brackets", "dashes", "keys"],
)
def test_a_file_that_is_nested_without_end_is_refused_in_one_sentence(text):
    with pytest.raises(MigError, match=r"^f: nested too deeply to be a MIG configuration$"):
        miniyaml.loads(text, "f")
