"""The data of HCL as the pipeline reads it: held against python-hcl2, and refused with a line."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any

import hcl2
import pytest

from kiln.base.paths import ROOT
from kiln.packer.hcl_values import HclError, parse_hcl, references

PACKER = ROOT / "packer"
OPTIONS = hcl2.SerializationOptions(
    with_comments=False, strip_string_quotes=True, explicit_blocks=False
)
FORMS = r"""
variable "region" {
  type    = string
  default = null
  validation {
    condition     = length(var.region) > 0 # why
    error_message = "A \"region\".\n"
  }
}
source "amazon-ebs" "gpu" {
  iops    = -1
  ratio   = 1.5
  empty   = ""
  on      = true
  off     = false
  ids     = ["a", var.b, 3, "c-${local.d}"]
  map     = { a = 1, "b c" = 2, d-e = "f", "g${local.h}" = null, (local.i) = 4 }
  tags    = merge(var.tags, local.tags, { Name = local.name })
  first   = a.b["c"].d[0]
  every   = [for name in a : name if name != ""]
  chosen  = a == null ? "" : !b
  wrapped = (a)
  block {
    one = 1
  }
  block {
  }
}
locals {
  a = 1
}
locals {
  text = <<EOT
${local.a}
EOT
}
"""


def without_blanks(data: Any) -> Any:
    """How an expression is laid out is its author's choice."""
    if isinstance(data, dict):
        return {re.sub(r"\s", "", key): without_blanks(value) for key, value in data.items()}
    if isinstance(data, list):
        return [without_blanks(value) for value in data]
    return re.sub(r"\s|,(?=\s*[]})])", "", data) if isinstance(data, str) else data


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(FORMS, id="forms"),
        *(
            pytest.param(path.read_text(encoding="utf-8"), id=str(path.relative_to(PACKER)))
            for path in sorted({path.resolve() for path in PACKER.glob("*/*.pkr.hcl")})
            if path.parent.name in ("shared", "packer-1.6", "al2-classic-base-x86_64")
        ),
    ],
)
def test_the_data_of_a_file_is_what_python_hcl2_reads(text: str) -> None:
    assert without_blanks(parse_hcl(text)) == without_blanks(
        hcl2.loads(text, serialization_options=OPTIONS)
    )


def test_a_comment_in_an_expression_is_not_part_of_its_value() -> None:
    assert "latest" not in parse_hcl("a = merge(b, # the latest\n  c)")["a"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-1-2", "${-1-2}"),
        ("-1+var.b", "${-1+var.b}"),
        ("-1.5e-3", -0.0015),
        (r'"\u0041\U0001F600"', "A😀"),
        (r'"\UFFFFFFFF"', r"\UFFFFFFFF"),
        (r'"\ud800"', r"\ud800"),
        ("1" * 5000, math.inf),
    ],
)
def test_what_is_no_number_and_no_letter_stays_text(text: str, value: object) -> None:
    assert parse_hcl(f"a = {text}\n") == {"a": value}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a = 1\na "b" {\n}\n', 2),
        ('a "b" {\n}\na = 1\n', 3),
        ("a = 1\na = 2\n", 2),
        (f"a = {'[' * 400}{']' * 400}\n", 1),
        (f"a = {'+'.join('1' * 3000)}\n", 1),
        ("a = 1\nb = = 2\n", 2),
        ('a = 1\n\nb "c" {\n  d = 1\n', 4),
        ("a = [1, 2\n", 1),
        ('a = "b\n', 1),
        ("a\n", 1),
    ],
)
def test_what_is_not_hcl_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(HclError) as refused:
        parse_hcl(text)
    with contextlib.suppress(HclError):
        references(text)
    assert refused.value.line == line, refused.value


def test_references_are_the_longest_names_with_dots() -> None:
    named = references('a = local.recipe.volume.size\nb = ["${local.x[0].y}", f(var.z)]\n')
    assert named == {("local", "recipe", "volume", "size"), ("local", "x"), ("var", "z")}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a = -\n", "a value"),
        ('x "y" {\n  a =| var.b\n}\n', "a value"),
        ("a = ]b\n", "a value"),
        ("a = }b\n", "a value"),
        ('a "b" {\n', "'}'"),
        ("a = f(1\n", "')'"),
        ("a = [1\n", "']'"),
        ('a = "\n', "the closing quote"),
        ("a = <<EOT\nx\n", "the end of a heredoc"),
        ("a = <<EOT\n${l&ocal.a}\nEOT\n", "'}'"),
    ],
)
def test_what_is_missing_is_said_in_the_words_of_hcl(text: str, what: str) -> None:
    with pytest.raises(HclError) as refused:
        parse_hcl(text)
    assert str(refused.value) == f"{what} is missing"
