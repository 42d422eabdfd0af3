"""No text of a recipe becomes structure of HCL, whatever it holds."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import hcl2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import nodes

from kiln.base import templates
from kiln.base.errors import KilnError
from kiln.base.paths import TEMPLATES
from kiln.packer import program

pytestmark = pytest.mark.slow

FILTERS = {"hcl", "inside", "comment"}
PIECES = (
    *("\n", "\r", "\r\n", "\u2028", "\u0085", "\x0b", "\x0c", "\0", "\x1b[31m", "\u202e", "\ufeff"),
    *('"', "'", "\\", "\\n", '\\"', "${", "%{", "$${", "}", "{", "#", "//", "/*", "*/", "<<EOF\n"),
    *('build {\n  provisioner "shell-local" {}\n}\n', '${file("/etc/passwd")}', "é", "日", " "),
)
HOSTILE = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join)


@given(HOSTILE)
@settings(max_examples=100, deadline=None)
def test_hcl_string_keeps_its_value(text: str) -> None:
    quoted = templates.hcl_value(text)
    assert "\n" not in quoted
    assert list(hcl2.loads(f"a = {quoted}\n")) == ["a"]
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
