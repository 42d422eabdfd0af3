"""The unit tests that a change touches, for `./invoke test --changed`.

By folder: tests/unit mirrors kiln's folders. By imports: the tests that import a changed module, or
a module that rests on one.
"""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterable
from pathlib import Path

import grimp

from kiln.base.paths import ROOT

# Files outside kiln/ and lab/ → the folders of tests/unit that hold them.
_FOLDERS = {
    "amis.yaml": ("matrix", "repo"),
    "deploy": ("telemetry", "publish"),
    "devel": ("repo",),
    "docs": ("repo",),
    "invoke": ("repo",),
    "kiln/facts/knowledge": ("facts", "compat"),
    "lab": ("lab",),
    "packer": ("packer",),
    "provisioners": ("provisioners",),
    "runtime": ("runtime", "xid", "mig"),
    "setup": ("repo",),
    "templates/stack": ("telemetry",),
}


def changed_files(root: Path = ROOT) -> list[str]:
    """Return the files that differ from the last commit, new ones included."""
    git = ["git", "-C", str(root)]
    listed = [
        subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout
        for words in (
            ("diff", "--name-only", "HEAD"),
            ("ls-files", "--others", "--exclude-standard"),
        )
    ]
    return sorted({name for text in listed for name in text.splitlines()})


def touched_tests(files: Iterable[str], root: Path = ROOT) -> tuple[list[str], list[str]]:
    """Return the files of tests/unit that these files touch: first those next to the change, whose
    slow tests run too."""
    units = root / "tests" / "unit"
    every = sorted(units.rglob("test_*.py"))
    folders, modules, own = set[str](), set[str](), set[Path]()
    for name in files:
        path = Path(name)
        if name.startswith("tests/unit/"):
            # A helper is its folder's.
            pattern = path.name if path.name.startswith("test_") else "test_*.py"
            own |= set((root / path).parent.glob(pattern))
        for place, of in _FOLDERS.items():
            folders |= set(of) if path.is_relative_to(place) else set()
        if path.parts[0] in ("kiln", "templates") and len(path.parts) > 2:
            folders.add(path.parts[1])
        if path.suffix == ".py" and path.parts[0] in ("kiln", "lab", "devel"):
            modules.add(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    graph = grimp.build_graph("kiln", "lab", "devel", cache_dir=None)
    known = modules & graph.modules
    users = set[str]().union(*(graph.find_modules_that_directly_import(each) for each in known))
    rest = set[str]().union(*(graph.find_downstream_modules(each) for each in known))
    imports = {file: _imports(file) for file in every}
    here = {file for file in every if file.relative_to(units).parts[0] in folders}
    near = own | {file for file in here if imports[file] & (modules | users)}
    far = here | {file for file in every if imports[file] & (modules | rest)}
    return _names(near, root), _names(far - near, root)


def _names(files: Iterable[Path], root: Path) -> list[str]:
    return [str(file.relative_to(root)) for file in sorted(files) if file.is_file()]


@functools.cache
def _imports(file: Path) -> set[str]:
    """The modules that a file imports; `from a import b` may mean a.b."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found
