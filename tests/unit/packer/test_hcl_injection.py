"""No text of a recipe becomes structure of HCL, whatever it holds."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import hcl2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import nodes

from kiln.base import templates
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT, TEMPLATES
from kiln.base.recipe import Recipe
from kiln.matrix import load
from kiln.packer import program

pytestmark = pytest.mark.slow

FILTERS = {"hcl", "inside", "comment"}
PIECES = (
    *("\n", "\r", "\r\n", "\u2028", "\u0085", "\x0b", "\x0c", "\0", "\x1b[31m", "\u202e", "\ufeff"),
    *('"', "'", "\\", "\\n", '\\"', "${", "%{", "$${", "}", "{", "#", "//", "/*", "*/", "<<EOF\n"),
    *('build {\n  provisioner "shell-local" {}\n}\n', '${file("/etc/passwd")}', "é", "日", " "),
)
HOSTILE = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join)
PLAIN = hcl2.SerializationOptions(with_comments=False, strip_string_quotes=True)


@cache
def recipe() -> Recipe:
    return load.load_recipes(ROOT / "amis.yaml")[0]


def shape(data: Any) -> Any:
    """The structure of parsed HCL: keys and nesting, without the values of strings."""
    if isinstance(data, dict):
        return {key: shape(value) for key, value in data.items() if not key.startswith("__")}
    if isinstance(data, list):
        return [shape(value) for value in data]
    return type(data).__name__


def statements(text: str) -> list[str]:
    """The lines of HCL that are not comments, as a reader of lines has them."""
    return [line for line in re.split(r"[\n\r\u2028\u0085\x0b\x0c]", text) if line[:1] != "#"]


def hostile(text: str) -> Recipe:
    """The recipe with the text in every place that the matrix fills with text."""
    base = recipe()
    source = base.source_ami.changed(ssm_parameter=text or None, owner=text, name=text)
    distro = base.distro.changed(name=text)
    return base.changed(distro=distro, source_ami=source, line=text, stack=text, flavor=text)


# Whether each place of the template quotes what it is given. What quoting does to which text is the
# next test's matter.
@given(HOSTILE)
@settings(max_examples=20, deadline=None)
def test_hostile_recipe_renders_to_same_structure(text: str) -> None:
    rendered = rendered_recipe(hostile(text))
    lines, structure = plain()
    assert len(statements(rendered)) == lines
    assert shape(hcl2.loads(rendered)) == structure


@cache
def plain() -> tuple[int, Any]:
    """The number of lines and the structure of the recipe with a harmless text."""
    rendered = rendered_recipe(hostile("x"))
    return len(statements(rendered)), shape(hcl2.loads(rendered))


def rendered_recipe(of: Recipe) -> str:
    parts = {"nccl": {"env": {"A": of.flavor}}}
    return templates.render("packer/recipe.pkr.hcl.j2", recipe=of, components=parts)


@given(HOSTILE)
@settings(max_examples=100, deadline=None)
def test_hcl_string_keeps_its_value(text: str) -> None:
    quoted = templates.hcl_value(text)
    assert "\n" not in quoted
    assert shape(hcl2.loads(f"a = {quoted}\n")) == {"a": "str"}
    # The escapes are those of JSON as well.
    assert json.loads(quoted) == text
    assert len(f"# {templates.hcl_comment(text)}".splitlines()) == 1


def test_packer_reads_hostile_string_as_text(tmp_path: Path) -> None:
    try:
        found = program.find_packer(install=False)
    except KilnError as error:
        pytest.skip(f"needs Packer: {error.message}")
    text = 'a"b\\c\n\t\r\x1b\x7f\u202e\u2028${x}%{if}é日'
    (tmp_path / "x.pkr.hcl").write_text(
        f"# {templates.hcl_comment(text)}\n"
        f"locals {{\n  a = {templates.hcl_value(text)}\n}}\n"
        'source "null" "n" {\n  communicator = "none"\n}\n'
        'build {\n  sources = ["source.null.n"]\n  provisioner "shell-local" {\n'
        '    inline = ["printf %s ${jsonencode(base64encode(local.a))} > out"]\n  }\n}\n'
    )
    done = subprocess.run(
        [str(found.path), "build", "x.pkr.hcl"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert base64.b64decode((tmp_path / "out").read_text()).decode() == text


OF_HCL = sorted({*TEMPLATES.rglob("*.hcl.j2"), *TEMPLATES.rglob("*.tf.j2")})


@pytest.mark.parametrize("template", OF_HCL, ids=lambda path: path.name)
def test_each_expression_of_hcl_ends_in_a_filter(template: Path) -> None:
    tree = templates.environment().parse(template.read_text())
    written = [node for output in tree.find_all(nodes.Output) for node in output.nodes]
    for node in written:
        if not isinstance(node, nodes.TemplateData):
            assert isinstance(node, nodes.Filter), f"{template.name}:{node.lineno}"
            assert node.name in FILTERS


@pytest.mark.parametrize("template", sorted(TEMPLATES.rglob("*.html.j2")), ids=lambda p: p.name)
def test_page_escapes_its_values(template: Path) -> None:
    assert templates.environment().autoescape(str(template.relative_to(TEMPLATES)))
    tree = templates.environment().parse(template.read_text())
    unescaped = [node for node in tree.find_all(nodes.Filter) if node.name in ("safe", "e")]
    assert all(isinstance(node.node, nodes.Const) for node in unescaped)
