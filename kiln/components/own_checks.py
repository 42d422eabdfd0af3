"""An overlay's checks of a booted AMI, as far as they can be judged before anything is launched."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.located import Located, Path_, load_yaml
from kiln.base.overlay import overlay_mistake, shown_path
from kiln.base.paths import AMI_TESTS

# The keys of a mutation that is a mapping, and of which kind its value must be.
_MUTATION = {"run": str, "also": list, "not_in_a_lab": str, "own_kernel": str}


def refuse_wrong_checks(folder: Path) -> None:
    """Raise KilnError (exit status 2) with file and line for a file with checks that pytest would
    not run, a module that is not there, and a mutation of no check."""
    names: dict[str, list[str]] = {}
    for path in sorted((folder / "tests/ami").glob("*.py")):
        tree = ast.parse(path.read_bytes(), str(path))
        tests = dict(pair for node in tree.body for pair in _tests(node))
        if not path.name.startswith("test_") and tests:
            what = f"nothing runs {next(iter(tests))}: only files test_NAME.py have checks"
            raise overlay_mistake(
                path, what, f"call the file test_{path.name}", min(tests.values())
            )
        for module, line in _imported(tree):
            if not _exists(module, folder):
                raise overlay_mistake(path, f"there is no module {module!r}", line=line)
        if path.name.startswith("test_"):
            names[path.name] = list(tests)
    if (mutations := folder / "tests/ami/mutations.yaml").exists():
        _refuse_mutations(load_yaml(mutations, shown_path(mutations)), mutations, names)


def _tests(node: ast.stmt) -> Iterator[tuple[str, int]]:
    """The checks of a statement, as pytest names them behind the file, each with its line."""
    if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
        inside = (pair for inner in node.body for pair in _tests(inner))
        yield from ((f"{node.name}::{name}", line) for name, line in inside)
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
        yield node.name, node.lineno


def _imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The modules, without those inside of packages, that a file always imports."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0], node.lineno


def _exists(module: str, folder: Path) -> bool:
    if any(
        (place / f"{module}.py").exists() or (place / module).is_dir()
        for place in (AMI_TESTS, folder / "tests/ami")
    ):
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module that is loaded, and says not from where
        return True


def _refuse_mutations(document: Located, path: Path, names: dict[str, list[str]]) -> None:
    content: Any = document.data
    if not isinstance(content, dict) or not isinstance(content.get("checks"), dict):
        raise overlay_mistake(path, "it needs `checks`: for each file its checks")
    for key in content:
        if key != "checks":
            raise _at(document, (key,), f"nothing reads {key!r} here", "only `checks` is read")
    for file, of_file in content["checks"].items():
        if file not in names:
            hint = did_you_mean(file, names)
            raise _at(document, ("checks", file), f"there is no {file} beside this file", hint)
        if not isinstance(of_file, dict):
            raise _at(document, ("checks", file), "must be checks, each with a command")
        for name, entry in of_file.items():
            place = ("checks", file, name)
            if name not in names[file]:
                hint = did_you_mean(name, names[file])
                raise _at(document, place, f"{file} has no check {name!r}", hint)
            if not _is_mutation(entry):
                hint = "write a command, {run: …, also: […]}, {not_in_a_lab: …} or {own_kernel: …}"
                raise _at(document, place, f"{name} must say how a guest is broken", hint)


def _is_mutation(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return isinstance(entry, str) and entry.strip() != ""
    kinds = all(isinstance(value, _MUTATION.get(key, ())) for key, value in entry.items())
    return kinds and set(entry) in ({"run", "also"}, {"not_in_a_lab"}, {"own_kernel"})


def _at(document: Located, path: Path_, message: str, hint: str = "") -> KilnError:
    place = document.key_place(path)
    return KilnError(f"{place}: {message}", hint=hint, place=place)
