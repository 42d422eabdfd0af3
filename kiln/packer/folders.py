"""Writes the folders of `packer/`, and all that a run's bake reads."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kiln.base import overlay
from kiln.base.paths import packer_dir
from kiln.base.recipe import Recipe
from kiln.packer import uploads
from kiln.packer.layout import SHARED, checkout_from, orphan_folders, rendered_paths, tree_of
from kiln.packer.render import CHECKOUT, RECIPE_JSON
from kiln.packer.tree import Tree, is_there, write_tree

# Files of a folder that are named in a line.
_FEW = 5


def write_folders(recipes: Sequence[Recipe], root: Path | None = None) -> dict[str, Path]:
    """Bring the recipes' folders and `shared` in `root` up to date; a recipe's name → folder.

    `root` is `packer/`, or a folder that stands for it anywhere on this machine.
    """
    root = root or packer_dir()
    lines = [recipe.line for recipe in recipes]
    write_tree(root, tree_of(recipes, checkout_from(root)), rendered_paths(root, [SHARED, *lines]))
    return {recipe.name: root / recipe.line for recipe in recipes}


def write_all(recipes: Iterable[Recipe]) -> list[str]:
    """Render every recipe and remove the folders of rows that are gone.

    Returns a line for each folder that was written, moved or removed.
    """
    chosen = list(recipes)
    root = packer_dir()
    gone = orphan_folders(root, chosen)
    present = rendered_paths(root, [SHARED, *(recipe.line for recipe in chosen), *gone])
    tree = tree_of(chosen, checkout_from(root))
    lines = _done(root, tree, present, _moved(root, chosen, gone), gone)
    write_tree(root, tree, present)
    return lines


def write_inputs(recipe: Recipe, folder: Path) -> Path:
    """Copy into `folder`, laid out as in a checkout, all that a bake of the recipe reads: its
    rendered HCL and files, and what these name. Returns the recipe's folder in it.
    """
    for path, file in uploads.uploaded_files(recipe).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / path)
    root = folder / "packer"
    write_tree(root, tree_of([recipe], CHECKOUT, apart=False), [])
    return root / recipe.line


def _done(
    root: Path, tree: Tree, present: Iterable[str], moved: Mapping[str, str], gone: Iterable[str]
) -> list[str]:
    """What `write_tree` is about to do, a line for each folder; `moved` maps new folders to old."""
    files: dict[str, list[str]] = {}
    for path in sorted({*tree, *present}):
        folder, _, rest = path.partition("/")
        if path not in tree:
            files.setdefault(folder, []).append(f"without {rest}")
        elif not is_there(root / path, tree[path]):
            files.setdefault(folder, []).append(rest)
    lines, shown = [], overlay.shown_path(root)
    for folder, paths in files.items():
        if folder in gone:
            continue
        what = ", ".join(paths) if len(paths) <= _FEW else f"{len(paths)} files"
        if folder in moved:
            lines.append(f"moved    {shown}/{moved[folder]} → {shown}/{folder}")
        else:
            lines.append(f"wrote    {shown}/{folder}: {what}")
    return lines + [f"removed  {shown}/{name}" for name in gone if name not in moved.values()]


def _moved(root: Path, recipes: Iterable[Recipe], gone: Iterable[str]) -> dict[str, str]:
    """New folder → the folder in which the same AMI was, by its name."""
    names = {}
    for folder in gone:
        # An old folder may hold anything; then it is not known to have moved.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            names[json.loads((root / folder / RECIPE_JSON).read_text())["name"]] = folder
    return {
        recipe.line: names[recipe.name]
        for recipe in recipes
        if recipe.name in names and not (root / recipe.line).exists()
    }
