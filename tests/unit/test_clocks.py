"""No test asserts how long something took: on a busy machine such a test is red for nothing.

A test passes a clock in, asserts the message or the kill, or holds a time between two others that
it took before and after. To wait until a deadline and fail then is no such assert.
"""

from __future__ import annotations

import ast

import pytest

from kiln.base.paths import ROOT

CLOCKS = {
    *("monotonic", "monotonic_ns", "time", "time_ns", "perf_counter", "perf_counter_ns"),
    *("process_time", "now", "utcnow"),
}


class Durations(ast.NodeVisitor):
    """The lines of asserts that a difference of two times decides."""

    def __init__(self) -> None:
        self.lines: list[int] = []
        self._times: set[str] = set()
        self._durations: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before = set(self._times), set(self._durations)
        self.generic_visit(node)
        self._times, self._durations = before

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=False))
        for name, value in pairs:
            if self._has_duration(value):
                self._durations.add(ast.unparse(name))
            elif self._has_time(value):
                self._times.add(ast.unparse(name))
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        if self._has_duration(node.test):
            self.lines.append(node.lineno)

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        if called.startswith("self.assert") and any(map(self._has_duration, node.args)):
            self.lines.append(node.lineno)
        self.generic_visit(node)

    def _has_time(self, tree: ast.AST) -> bool:
        return any(
            (isinstance(node, ast.Call) and _is_clock(node.func)) or _is_among(self._times, node)
            for node in ast.walk(tree)
        )

    def _has_duration(self, tree: ast.AST) -> bool:
        return any(
            self._is_difference(node) or _is_among(self._durations, node) for node in ast.walk(tree)
        )

    def _is_difference(self, node: ast.AST) -> bool:
        """Whether it is a time minus something that may be another; `before - 1` is a time."""
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
            return False
        if isinstance(node.right, ast.Constant) or ast.unparse(node.right).startswith("timedelta("):
            return False
        return self._has_time(node.left) or self._has_time(node.right)


def _is_among(names: set[str], node: ast.AST) -> bool:
    # Most functions have neither, and ast.unparse is slow.
    return bool(names) and isinstance(node, ast.Name | ast.Subscript) and ast.unparse(node) in names


def _is_clock(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr in CLOCKS


def durations(source: str) -> list[int]:
    visitor = Durations()
    visitor.visit(ast.parse(source))
    return visitor.lines


@pytest.mark.parametrize(
    "source",
    [
        "def test():\n began = time.monotonic()\n assert time.monotonic() - began < 60",
        "def test():\n began = time.time()\n took = time.time() - began\n assert took < 60",
        "def test():\n a, b = time.time(), 1\n f()\n assert -1 < at.timestamp() - a < 60",
        "def test():\n s['x'] = time.time()\n s['x'] = time.time() - s['x']\n assert s['x'] < 9",
        "def test():\n assert abs(event / 1000 - time.time()) < 120",
        "def test():\n assert datetime.now(timezone.utc) - shown < timedelta(hours=1)",
        "def test(self):\n began = time.perf_counter()\n"
        " self.assertLess(time.perf_counter() - began, 1)",
    ],
)
def test_an_assert_on_how_long_something_took_is_seen(source: str) -> None:
    assert len(durations(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "def test():\n deadline = time.monotonic() + 60\n assert time.monotonic() < deadline",
        "def test():\n before = time.time()\n f()\n assert before - 1 < at < time.time() + 1",
        "def test():\n at = datetime.now(utc) - timedelta(hours=1)\n assert at in shown",
        "def test():\n assert stage.seconds - began == 60",
        "def test():\n began = time.time()\n print(time.time() - began)",
    ],
)
def test_a_deadline_and_a_time_between_two_others_are_let_through(source: str) -> None:
    assert durations(source) == []


def test_no_test_asserts_how_long_something_took() -> None:
    lines = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in durations(path.read_text(encoding="utf-8"))
    ]
    assert lines == []
