"""The hint of an error continues its line, so it ends without a full stop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kiln.base.paths import ROOT

FILES = [
    path
    for folder in ("kiln", "lab", "devel", "runtime", "runtime-variants")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def test_no_hint_ends_with_a_full_stop() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
    takers = {taker for tree in trees.values() for taker in hint_takers(tree)}
    stopped = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path, tree in trees.items()
        for line, text in hint_ends(tree, takers)
        if text.endswith(".") and not text.endswith("..")
    ]
    assert stopped == []


def test_the_end_of_a_hint_is_found_wherever_it_stands() -> None:
    text = """
class Wrong(Exception):
    def __init__(self, message, hint=""):
        pass

def failed(message, hint):
    return Wrong(message, hint=f"{message} a.")

failed("x", "b " + "c.")
Wrong("x", "d." if a else "e.")
Wrong("x", "{} g.".format(a))
hint = f"f {a}"
"""
    tree = ast.parse(text)
    ends = [end for _, end in hint_ends(tree, set(hint_takers(tree)))]
    assert sorted(ends) == [" a.", "c.", "d.", "e.", "{} g."]


def hint_takers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Functions and classes with a parameter `hint`, and its position in a call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    yield from ((node.name, at - 1) for at in _positions(method))
        elif isinstance(node, ast.FunctionDef) and node.name != "__init__":
            is_method = bool(node.args.args) and node.args.args[0].arg in {"self", "cls"}
            yield from ((node.name, at - is_method) for at in _positions(node))


def _positions(function: ast.FunctionDef) -> list[int]:
    return [at for at, argument in enumerate(function.args.args) if argument.arg == "hint"]


def hint_ends(tree: ast.AST, takers: set[tuple[str, int]]) -> Iterator[tuple[int, str]]:
    """The line of each hint that is written out, and the text that it ends with."""
    for node in ast.walk(tree):
        hints: list[ast.expr] = []
        if isinstance(node, ast.Call):
            hints += [word.value for word in node.keywords if word.arg == "hint"]
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            hints += [argument for at, argument in enumerate(node.args) if (name, at) in takers]
        elif isinstance(node, ast.Assign) and "hint" in [
            target.id for target in node.targets if isinstance(target, ast.Name)
        ]:
            hints.append(node.value)
        yield from ((node.lineno, text) for hint in hints for text in _ends(hint))


def _ends(text: ast.expr) -> list[str]:
    if isinstance(text, ast.Constant):
        return [str(text.value)]
    if isinstance(text, ast.JoinedStr):
        last = text.values[-1]
        return [str(last.value)] if isinstance(last, ast.Constant) else []
    if isinstance(text, ast.Call) and isinstance(text.func, ast.Attribute):
        return _ends(text.func.value) if text.func.attr == "format" else []
    if isinstance(text, ast.BinOp):
        return _ends(text.right)
    if isinstance(text, ast.IfExp):
        return [*_ends(text.body), *_ends(text.orelse)]
    if isinstance(text, ast.BoolOp):
        return [end for value in text.values for end in _ends(value)]
    return []
