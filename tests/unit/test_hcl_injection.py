"""No text of a recipe becomes structure of HCL, whatever it holds."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import hcl2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment, meta, nodes

from kiln.base.errors import KilnError
from kiln.base.paths import ROOT, TEMPLATES
from kiln.base.recipe import Recipe
from kiln.matrix import load
from kiln.packer import hcl, program, render

# The attack of issue 12: it ran `id` as root on the machine that builds.
ATTACK = 'Amazon Linux 2\n}\nbuild {\n  provisioner "shell-local" {\n    inline = ["id"]\n  }\n}\n'
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
    source = replace(base.source_ami, ssm_parameter=text or None, owner=text, name=text)
    distro = replace(base.distro, name=text)
    return replace(base, distro=distro, source_ami=source, line=text, stack=text, flavor=text)


# Whether each place of the template quotes what it is given. What quoting does to which text is the
# next test's matter, with ten times the examples.
@given(HOSTILE)
@settings(max_examples=30, deadline=None)
def test_a_hostile_recipe_renders_to_the_same_structure(text: str) -> None:
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
    """The recipe's own HCL; its components are those of the recipe as it is in the matrix."""
    values = {"recipe": of, "components": {"nccl": {"env": {"A": of.flavor}}}}
    return render.hcl_templates().get_template("recipe.pkr.hcl.j2").render(values)


@given(HOSTILE)
@settings(max_examples=300, deadline=None)
def test_a_string_is_one_string_and_keeps_its_value(text: str) -> None:
    quoted = hcl.string(text)
    assert "\n" not in quoted
    assert shape(hcl2.loads(f"a = {quoted}\n")) == {"a": "str"}
    # The escapes are those of JSON as well.
    assert json.loads(quoted) == text


@given(HOSTILE)
def test_a_comment_ends_with_its_line(text: str) -> None:
    assert len(f"# {hcl.comment(text)}".splitlines()) == 1


def test_the_attack_is_refused_in_the_matrix(tmp_path: Path) -> None:
    path = tmp_path / "amis.yaml"
    text = (ROOT / "amis.yaml").read_text()
    path.write_text(f"{text}\ndistros:\n  al2: {{name: {json.dumps(ATTACK)}}}\n")
    with pytest.raises(KilnError, match=r"distros\.al2\.name: .* is not a name of letters"):
        load.load_recipes(path)


def test_the_attack_is_a_comment_if_it_gets_past_the_matrix() -> None:
    text = rendered_recipe(replace(recipe(), distro=replace(recipe().distro, name=ATTACK)))
    assert set(hcl2.loads(text, serialization_options=PLAIN)) <= {"locals", "__comments__"}
    assert "shell-local" in text.splitlines()[0]


def test_packer_reads_a_hostile_string_as_it_was_meant(tmp_path: Path) -> None:
    try:
        found = program.find_packer(install=False)
    except KilnError as error:
        pytest.skip(f"needs Packer: {error.message}")
    text = 'a"b\\c\n\t\r\x1b\x7f\u202e\u2028${x}%{if}é日'
    (tmp_path / "x.pkr.hcl").write_text(
        f"# {hcl.comment(text)}\n"
        f"locals {{\n  a = {hcl.string(text)}\n}}\n"
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


def outputs(template: Path) -> list[nodes.Expr]:
    """Every expression that a template writes."""
    source = template.read_text()
    environment = render.hcl_templates()
    tree = environment.parse(source)
    return [
        node
        for output in tree.find_all(nodes.Output)
        for node in output.nodes
        if not isinstance(node, nodes.TemplateData)
    ]


OF_HCL = sorted(TEMPLATES / folder for folder in ("packer", "consume"))


@pytest.mark.parametrize(
    "template", sorted(file for folder in OF_HCL for file in folder.glob("*.j2")), ids=str
)
def test_each_expression_of_a_template_ends_in_a_filter(template: Path) -> None:
    found = outputs(template)
    assert found
    for node in found:
        assert isinstance(node, nodes.Filter), f"{template.name}:{node.lineno}"
        assert node.name in FILTERS


def test_a_value_without_a_filter_does_not_render() -> None:
    template = render.hcl_templates().from_string("# {{ name }}")
    with pytest.raises(TypeError, match="reaches HCL without a filter"):
        template.render(name="x")


def test_every_other_template_escapes_by_itself() -> None:
    """templates/ has no template besides HCL's but the reports and the catalogue's pages, which
    Jinja escapes as HTML, and a stack's, whose values are JSON."""
    pages = TEMPLATES / "catalogue"
    others = {path.name for path in TEMPLATES.rglob("*.j2") if path.parent not in (*OF_HCL, pages)}
    of = {"report.html.j2": "pipeline/report.py", "nightly.html.j2": "publish/night_report.py"}
    of |= {f"catalogue/{path.name}": "catalogue/pages.py" for path in pages.glob("*.j2")}
    others |= {f"catalogue/{path.name}" for path in pages.glob("*.j2")}
    asked = ("build", "catalogue", "plan", "publish")
    of_json = {"nightly-codebuild.yaml.j2": [f"{name}_policy" for name in asked]}
    assert others == {*of, *of_json}
    for name, policies in of_json.items():
        # Ours, from kiln/facts/knowledge; `engines` gives them as JSON, and no value of a user.
        tree = Environment().parse((TEMPLATES / "deploy" / name).read_text())
        assert sorted(meta.find_undeclared_variables(tree)) == policies
    for name, module in of.items():
        tree = Environment().parse((TEMPLATES / name).read_text())
        unescaped = [node for node in tree.find_all(nodes.Filter) if node.name in ("safe", "e")]
        assert all(isinstance(node.node, nodes.Const) for node in unescaped)
        assert "autoescape=True" in (ROOT / "kiln" / module).read_text()
