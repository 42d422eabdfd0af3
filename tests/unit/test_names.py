"""Names: a function or class of kiln/ has one definition and a use."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kiln.base.paths import ROOT

# The functions that components have in common (kiln/components/component.py).
OF_COMPONENTS = {"environment", "downloads", "files"}


def definitions() -> Iterator[tuple[str, str]]:
    """Name and place of each public function and class at the top level of a module.

    Left out: tasks, whose names are those of the command line, and what components share.
    """
    for path in sorted((ROOT / "kiln").rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        component = path.parent.name == "components"
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            decorators = {
                ast.unparse(item.func if isinstance(item, ast.Call) else item)
                for item in node.decorator_list
            }
            if "task" in decorators or (component and node.name in OF_COMPONENTS):
                continue
            yield node.name, f"{place}:{node.lineno}"


def test_no_two_public_functions_or_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for name, place in definitions():
        places.setdefault(name, []).append(place)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def public_names(module: ast.Module) -> Iterator[str]:
    """Functions, classes and constants at the top of a module, and the fields of its classes."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        if isinstance(node, ast.ClassDef):
            fields = (field.target for field in node.body if isinstance(field, ast.AnnAssign))
            yield from (field.id for field in fields if isinstance(field, ast.Name))


CODE = ("kiln", "lab", "devel", "setup", "provisioners", "runtime", "templates")
# Imported for what their import does: it registers handlers.
FOR_THE_IMPORT = {"lab/ec2/layer.py: HANDLERS"}


def sources() -> Iterator[Path]:
    """What is written in this checkout and is no test."""
    yield ROOT / "tasks.py"
    for folder in CODE:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def undecorated(tree: ast.Module) -> Iterator[str]:
    """The names that a module defines at its top level; a decorator may register one for use."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if not node.decorator_list:
                yield node.name
        elif isinstance(node, ast.Assign):
            yield from (name.id for name in node.targets if isinstance(name, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_nothing_of_kiln_or_the_lab_is_there_for_tests_alone() -> None:
    uses: Counter[str] = Counter()
    for path in sources():
        uses.update(re.findall(r"[A-Za-z_]\w*", path.read_text(errors="replace")))
    unused = {
        f"{path.relative_to(ROOT).as_posix()}: {name}"
        for folder in ("kiln", "lab")
        for path in (ROOT / folder).rglob("*.py")
        for name in undecorated(ast.parse(path.read_text(encoding="utf-8")))
        if uses[name] == 1
    }
    assert unused == FOR_THE_IMPORT
