"""Tests call what a module publishes: a name with an underscore may change without a test."""

from __future__ import annotations

import ast

import pytest

from kiln.base.paths import ROOT

OURS = {"kiln", "lab", "devel", "gpu_boot", "gpu_mig", "gpu_xid"}
# Documented by Python in spite of their names.
PYTHONS_OWN = {"_exit", "_replace", "_asdict"}
# What a class of the test itself has.
SELVES = {"self", "cls", "super()"}


def private(source: str) -> list[str]:
    """`line: name` of each import and call of what has a leading underscore and is not the test's
    own."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in OURS:
                names += [(node, name.name) for name in node.names if _is_private(name.name)]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _is_private(node.func.attr)
            and ast.unparse(node.func.value) not in SELVES
        ):
            names.append((node, ast.unparse(node.func)))
    return [f"{node.lineno}: {name}" for node, name in names]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PYTHONS_OWN


@pytest.mark.parametrize(
    "source",
    [
        "from kiln.pipeline import states\nstates._bound(AWS)",
        "from kiln.pipeline.states import _bound",
        "session = session_to(port)\nsession._begin()",
        "LabTarget('a test')._variables(row)",
    ],
)
def test_a_call_of_a_private_function_is_seen(source: str) -> None:
    assert len(private(source)) == 1


@pytest.mark.parametrize(
    "source", ["self._serve()", "super()._split_scope(x)", "os._exit(0)", "gpu._replace(index=1)"]
)
def test_a_tests_own_methods_and_those_of_python_are_let_through(source: str) -> None:
    assert private(source) == []


def test_no_test_calls_a_private_function() -> None:
    calls = [
        f"{path.relative_to(ROOT)}:{call}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for call in private(path.read_text(encoding="utf-8"))
    ]
    assert calls == []
