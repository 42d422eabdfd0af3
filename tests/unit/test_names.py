"""A reader who greps for a function or class of kiln/ finds one definition."""

from __future__ import annotations

import ast
from collections.abc import Iterator

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
