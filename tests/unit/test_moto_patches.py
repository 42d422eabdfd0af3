"""What the lab replaces in moto is listed in one file, with the version of moto it was seen in."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from kiln.base import yaml_files
from kiln.base.paths import ROOT

LIST = ROOT / "lab/api/moto_patches.yaml"


def replaced(path: Path) -> Iterator[str]:
    """What a module puts in the place of moto's: `CloudWatchBackend.put_metric_data`."""
    tree = ast.parse(path.read_text())
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "moto":
            imported |= {name.asname or name.name: name.name for name in node.names}
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "moto":
                    imported[name.asname or "moto"] = name.name if name.asname else "moto"
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and imported:
            yield from _in_function(function, dict(imported))


def _in_function(function: ast.FunctionDef, of_moto: dict[str, str]) -> Iterator[str]:
    assigned = [pair for node in ast.walk(function) for pair in _assigned(node)]
    for target, value in assigned:
        root, _, rest = ast.unparse(value).partition(".")
        if (
            isinstance(target, ast.Name)
            and root in of_moto
            and rest.replace(".", "").isidentifier()
        ):
            of_moto[target.id] = _joined(of_moto[root], rest)
        elif isinstance(target, ast.Name) and ast.unparse(value) in of_moto:
            of_moto[target.id] = of_moto[ast.unparse(value)]
    for node in ast.walk(function):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            loops = [ast.unparse(element) for element in getattr(node.iter, "elts", [])]
            if loops and all(loop in of_moto for loop in loops):
                of_moto[node.target.id] = " and ".join(of_moto[loop] for loop in loops)
    for target, _ in assigned:
        root, _, rest = ast.unparse(target).partition(".")
        if isinstance(target, ast.Attribute) and root in of_moto:
            yield _joined(of_moto[root], rest)
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr":
            root, _, rest = ast.unparse(node.args[0]).partition(".")
            if root in of_moto:
                yield f"{_joined(of_moto[root], rest)}: several"


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment with their values, also of `a, b = c, d`."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=True)
            else:
                yield target, node.value


def _joined(*names: str) -> str:
    return ".".join(filter(None, names))


@functools.cache
def listed() -> dict[str, Any]:
    content: dict[str, Any] = yaml_files.read_plain(LIST)
    return content


def test_every_replacement_is_listed_and_every_entry_is_one() -> None:
    found = {
        str(path.relative_to(ROOT)): sorted(set(replaced(path)))
        for path in sorted((ROOT / "lab").rglob("*.py"))
    }
    assert {name: names for name, names in found.items() if names} == listed()["modules"]


def test_the_list_is_of_the_moto_that_is_installed() -> None:
    assert listed()["seen_in"] == metadata.version("moto")
