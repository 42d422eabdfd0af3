"""Imports that import-linter cannot see: by a name that is made while the program runs."""

from __future__ import annotations

import ast

import pytest

from kiln.base.paths import ROOT

# What each loads, which kiln may not name.
ALLOWED = {
    "kiln/base/paths.py": "programs of runtime/, which ship",
    "kiln/cli/targets.py": "the lab, by its entry points",
    "kiln/components/own.py": "components of an overlay",
}
MODULES = ("importlib", "importlib.util", "importlib.machinery", "runpy", "pkgutil", "imp")


def dynamic(source: str) -> list[int]:
    """The lines that import what imports by name."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            loads = any(name.name in MODULES for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            loads = node.module in MODULES
        else:
            loads = isinstance(node, ast.Name) and node.id in ("__import__", "__builtins__")
        if loads:
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    "source",
    [
        "import importlib\nimportlib.import_module('kiln.pipeline.plan')",
        "from importlib import import_module as load",
        "import importlib.util",
        "__import__('kiln.pipeline.plan')",
        "def late():\n    import runpy",
    ],
)
def test_an_import_by_name_is_seen(source: str) -> None:
    assert dynamic(source)


@pytest.mark.parametrize("source", ["import importlib.metadata", "from kiln.base import paths"])
def test_another_import_is_let_through(source: str) -> None:
    assert dynamic(source) == []


def test_only_the_modules_that_load_foreign_files_import_by_name() -> None:
    files = [path for folder in ("kiln", "lab") for path in (ROOT / folder).rglob("*.py")]
    lines = {
        path.relative_to(ROOT).as_posix(): at
        for path in files
        if (at := dynamic(path.read_text(encoding="utf-8")))
    }
    assert lines.keys() == ALLOWED.keys(), lines
