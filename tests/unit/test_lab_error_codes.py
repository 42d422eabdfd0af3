"""Each error code with which the lab's EC2 answers has a source, or is said to be assumed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kiln.base import yaml_files
from kiln.base.paths import ROOT
from lab.moto.ec2 import ids

CODE = re.compile(r"[A-Z]\w+(\.[A-Z]\w+)?")


def answered() -> Iterator[str]:
    """The codes that the lab's programs answer EC2's calls with."""
    for path in [*(ROOT / "lab").glob("*.py"), *(ROOT / "lab" / "ec2").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _name(node.func) in ("error", "EC2ClientError"):
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and CODE.fullmatch(str(first.value)):
                    yield str(first.value)
    yield from (code for _, code in ids._FORMS.values())


def _name(called: ast.expr) -> str:
    return str(getattr(called, "id", "") or getattr(called, "attr", ""))


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    data: dict[str, Any] = yaml_files.read_plain(Path(ids.__file__).with_name("errors.yaml"))
    return data


def test_each_code_has_its_source(known: dict[str, Any]) -> None:
    listed = {*known["on_the_page"], *known["elsewhere"], *known["assumed"]}
    assert {*answered()} - listed == set()


def test_only_one_code_is_assumed(known: dict[str, Any]) -> None:
    assert [*known["assumed"]] == ["InvalidImageUsageReportId.NotFound"]


def test_a_source_can_be_opened(known: dict[str, Any]) -> None:
    sources = [known["page"], *known["elsewhere"].values(), *known["answers"].values()]
    assert [source for source in sources if not source.startswith("https://")] == []
