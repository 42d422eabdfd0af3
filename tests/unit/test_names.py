"""Names: a function or class of kiln/ has one definition and a use; what a name holds is a noun."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from devel import scripts
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


# A reader does not learn from them what they hold: recipe, matches, message, answer do that.
NOT_NOUNS = {"found", "one", "said", "some", "told"}
# What was asked, given or known is a request, parameters, flags or facts. What ships keeps such
# names inside its functions: each change of a shipped file is a new digest of every image.
NOT_WHO_ASKED = {"asked", "given", "known"}
# Fields of a record and of `provenance.verify --json`, which others read by these names.
PUBLISHED = {
    "kiln/pipeline/failure.py: said",
    "kiln/publish/provenance.py: said",
}


def given_names(module: ast.Module) -> Iterator[str]:
    """Names of variables, attributes, arguments and functions, without leading underscores."""
    for node in ast.walk(module):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield (node.id if isinstance(node, ast.Name) else node.attr).lstrip("_")
        elif isinstance(node, ast.arg):
            yield node.arg.lstrip("_")
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler):
            yield (node.name or "").lstrip("_")


def test_names_say_what_they_hold() -> None:
    folders = ("kiln/", "lab/", "devel/", "runtime/")
    files = [file for file in scripts.committed() if file.startswith(folders)]
    wrong = {
        f"{file}: {name}"
        for file in scripts.of_language("python", files)
        for name in given_names(ast.parse((ROOT / file).read_bytes()))
        if name in NOT_NOUNS or (name in NOT_WHO_ASKED and not file.startswith("runtime/"))
    }
    assert wrong == PUBLISHED


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


def test_public_names_of_what_ships_say_what_it_is_and_not_who_asked_for_it() -> None:
    wrong = {
        f"{path.relative_to(ROOT).as_posix()}: {name}"
        for path in sorted((ROOT / "runtime").rglob("*.py"))
        for name in [path.stem, *public_names(ast.parse(path.read_bytes()))]
        if name.lower() in NOT_WHO_ASKED
    }
    assert wrong == set()


# Participles are no names of modules: a reader cannot tell what lies there. Components have their
# vendors' names, a YAML document with places is what `located` reads, and a testbed is a bed.
PARTICIPLES = re.compile(r"(?:.*ed|given|seen|gone|kept|held)$")
OTHER_WORDS = {"feed", "mig_parted", "installed", "located", "unsupported", "testbed"}


def test_modules_are_named_by_nouns_and_no_two_by_one_letter() -> None:
    modules = [
        path
        for folder in ("kiln", "lab", "devel")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.stem != "__init__"
    ]
    participles = {path.stem for path in modules if PARTICIPLES.match(path.stem)}
    assert participles == OTHER_WORDS
    twins = [path for path in modules if path.with_name(f"{path.stem}s.py").exists()]
    assert twins == []


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
