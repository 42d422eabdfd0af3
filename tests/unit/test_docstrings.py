"""A docstring of kiln/ says that the function raises KilnError: a caller must know it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from itertools import chain

from kiln.base.paths import ROOT


@cache
def modules() -> dict[str, ast.Module]:
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "kiln").rglob("*.py"))
    }


@cache
def makers_of_errors() -> set[str]:
    """KilnError, the classes derived from it, and the functions that return one."""
    names = {"KilnError"}
    for node in chain.from_iterable(map(ast.walk, modules().values())):
        if isinstance(node, ast.ClassDef) and "KilnError" in map(ast.unparse, node.bases):
            names.add(node.name)
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            returned = ast.unparse(node.returns)
            names |= {node.name} if returned in {"KilnError", "errors.KilnError"} else set()
    return names


def escaping(node: ast.AST) -> Iterator[ast.AST]:
    """What runs below a node and outside of a `try` that catches KilnError.

    Functions inside of it are left out: they run where they are called.
    """
    parts = [part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.FunctionDef)]
    if isinstance(node, ast.Try) and any(
        handler.type is None or "KilnError" in ast.unparse(handler.type)
        for handler in node.handlers
    ):
        parts = [*node.handlers, *node.orelse, *node.finalbody]
    for part in parts:
        yield part
        yield from escaping(part)


def last_word(node: ast.expr) -> str:
    """`required` of `vocabulary.REGION.required(…)`."""
    call = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(call).rsplit(".", 1)[-1]


def raises(function: ast.FunctionDef, private: dict[str, ast.FunctionDef]) -> bool:
    """Does a function raise a KilnError, itself or through `private` functions of its module?"""
    others = dict(private)
    others.pop(function.name, None)
    for node in escaping(function):
        raised = node.exc if isinstance(node, ast.Raise) else None
        if raised is not None and last_word(raised) in makers_of_errors():
            return True
        if isinstance(node, ast.Call):
            called = others.get(last_word(node))
            if called and raises(called, others):
                return True
    return False


def is_task(function: ast.FunctionDef) -> bool:
    """A task's docstring is its help; the command line prints its errors."""
    return "task" in map(last_word, function.decorator_list)


def members(parent: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """The functions of a module and of its classes."""
    for node in parent.body:
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from members(node)


def silent() -> Iterator[str]:
    """Public functions that raise KilnError, and whose docstring does not say so.

    `See X` refers to a protocol, whose docstring says it.
    """
    for place, module in modules().items():
        functions = list(members(module))
        private = {node.name: node for node in functions if node.name.startswith("_")}
        for function in functions:
            text = ast.get_docstring(function) or ""
            if function.name in private or is_task(function) or "See `" in text:
                continue
            if "aises" not in text and "Error" not in text and raises(function, private):
                yield f"{place}:{function.lineno} {function.name}"


def test_a_public_function_that_raises_kiln_error_says_so() -> None:
    assert list(silent()) == []
