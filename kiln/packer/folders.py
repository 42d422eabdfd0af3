"""The folders of `packer/` on the disk: written where they differ, stale, left over from a row.

Anything else in them is left alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from kiln.base import overlay
from kiln.base.paths import ROOT, matrix_file, packer_dir
from kiln.base.recipe import Recipe
from kiln.packer import render
from kiln.packer.program import FOLDER_1_6
from kiln.packer.render import LINKS, RECIPE, SETTINGS, SHARED, Link, Rendered, Tree

# What render writes into a row's folder.
_MINE = (RECIPE, *LINKS, "files", SETTINGS, f"{FOLDER_1_6}/{SETTINGS}")
# Files of a folder that are named in a line.
_FEW = 5
_GONE = "not rendered any more"


def shown_packer() -> str:
    """Return the folder of rendered HCL for messages: `packer`, or where KILN_PACKER_DIR has it."""
    return overlay.shown_path(packer_dir())


def stale_files(recipes: Iterable[Recipe]) -> list[str]:
    """Return a line per committed file that differs from what the whole matrix says now."""
    rows = list(map(render.render, recipes))
    gone = _orphan_folders(packer_dir(), rows)
    return stale_rows(rows) + [
        f"{shown_packer()}/{name}: no row of the matrix makes it" for name in gone
    ]


def stale_rows(rows: Sequence[Rendered]) -> list[str]:
    """Return a line per committed file of these rows that differs from what is rendered."""
    root = packer_dir()
    tree = render.packer_tree(rows, root)
    changes = _changes(root, tree, _rendered_paths(root, _folders(rows)))
    return [f"{shown_packer()}/{path}: {what}" for path, what in changes.items()]


def renewal() -> str:
    """Return the command that brings `packer/` up to date.

    From the matrix of the checkout more is generated than packer/, such as docs/proven.md.
    """
    own = matrix_file() == ROOT / "amis.yaml" and packer_dir() == ROOT / "packer"
    return "./invoke generate" if own and not overlay.overlays() else "./invoke render"


def write_folders(recipes: Sequence[Recipe], root: Path | None = None) -> dict[str, Path]:
    """Bring the recipes' folders and `shared` in `root` up to date; a recipe's name → folder.

    `root` is `packer/`, or a folder that stands for it anywhere on this machine.
    """
    root = root or packer_dir()
    rows = list(map(render.render, recipes))
    _write_tree(root, render.packer_tree(rows, root), _rendered_paths(root, _folders(rows)))
    return {recipe.name: root / recipe.line for recipe in recipes}


def write_all(recipes: Iterable[Recipe]) -> list[str]:
    """Render every recipe and remove the folders of rows that are gone.

    Returns a line for each folder that was written or removed.
    """
    rows = list(map(render.render, recipes))
    root = packer_dir()
    gone = _orphan_folders(root, rows)
    present = _rendered_paths(root, [*_folders(rows), *gone])
    tree = render.packer_tree(rows, root)
    files: dict[str, list[str]] = {}
    for path, why in _changes(root, tree, present).items():
        folder, _, rest = path.partition("/")
        word = "without " if why == _GONE else ""
        files.setdefault(folder, []).append(f"{word}{rest}")
    _write_tree(root, tree, present)
    shown = overlay.shown_path(root)
    lines = []
    for folder, names in files.items():
        if folder in gone:
            continue
        what = ", ".join(names) if len(names) <= _FEW else f"{len(names)} files"
        lines.append(f"wrote    {shown}/{folder}: {what}")
    return lines + [f"removed  {shown}/{name}" for name in gone]


def write_inputs(rendered: Rendered, folder: Path) -> Path:
    """Write into `folder`, laid out as a checkout, all that a bake reads. Returns the recipe's
    folder in it: what is written is what was digested, whatever was edited since.
    """
    for path, content in rendered.inputs.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    for path, file in render.uploaded_files(rendered.recipe).items():
        if path in rendered.inputs:
            shutil.copymode(file, folder / path)
    row = folder / "packer" / rendered.recipe.line
    for path, link in LINKS.items():
        _put(row / path, link)
    return row


def _folders(rows: Iterable[Rendered]) -> list[str]:
    return [SHARED, *(row.recipe.line for row in rows)]


def _rendered_paths(root: Path, folders: Iterable[str]) -> list[str]:
    """Return the files and links in these folders that render wrote, relative to `root`."""
    present = []
    for name in folders:
        mine = [root / name] if name == SHARED else [root / name / path for path in _MINE]
        for path in mine:
            paths = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
            present += [p for p in paths if p.is_file() or p.is_symlink()]
    return [path.relative_to(root).as_posix() for path in present]


def _orphan_folders(root: Path, rows: Iterable[Rendered]) -> list[str]:
    """Return the folders that render wrote for a row that is gone."""
    folders = {path.name for path in root.iterdir() if path.is_dir()} if root.is_dir() else set()
    gone = sorted(folders - set(_folders(rows)))
    return [name for name in gone if _rendered_paths(root, [name])]


def _changes(root: Path, tree: Tree, present: Collection[str]) -> dict[str, str]:
    """Map each path that is not as in the tree to why; `present` are those that may go."""
    changes = {}
    for path in sorted({*tree, *present}):
        if path not in tree:
            changes[path] = _GONE
        elif path not in present:
            changes[path] = "missing"
        elif not _is_there(root / path, tree[path]):
            changes[path] = "differs from the matrix"
    return changes


def _write_tree(root: Path, tree: Tree, present: Iterable[str]) -> None:
    """Make the folder `root` hold the tree; `present` are the files in it that may go."""
    for path in sorted(set(present) - set(tree)):
        (root / path).unlink()
        for folder in (root / path).parents:
            if folder == root or any(folder.iterdir()):
                break
            folder.rmdir()
    for path, content in tree.items():
        if not _is_there(root / path, content):
            _put(root / path, content)


def _put(path: Path, content: str | Link) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # writing to a link would change what it leads to
    if isinstance(content, Link):
        path.symlink_to(content.target)
    else:
        path.write_text(content, encoding="utf-8")


def _is_there(path: Path, content: str | Link) -> bool:
    if isinstance(content, Link) or path.is_symlink():
        return path.is_symlink() and Link(str(path.readlink())) == content
    return path.is_file() and path.read_bytes() == content.encode()
