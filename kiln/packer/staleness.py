"""Whether `packer/` is what the matrix says now, and what makes it so."""

from __future__ import annotations

from collections.abc import Iterable

from kiln.base import overlay
from kiln.base.paths import ROOT, matrix_file, packer_dir
from kiln.base.recipe import Recipe
from kiln.packer.layout import SHARED, checkout_from, orphan_folders, rendered_paths, tree_of
from kiln.packer.tree import is_there


def shown_packer() -> str:
    """The folder of rendered HCL for messages: `packer`, unless `KILN_PACKER_DIR` moved it."""
    return overlay.shown_path(packer_dir())


def stale_files(recipes: Iterable[Recipe], *, orphans: bool = True) -> list[str]:
    """One line per committed file that differs from what the matrix says now; none when fresh.

    `orphans`: the recipes are the whole matrix, and folders of others are stale too.
    """
    chosen = list(recipes)
    root, shown = packer_dir(), shown_packer()
    tree = tree_of(chosen, checkout_from(root))
    present = set(rendered_paths(root, [SHARED, *(recipe.line for recipe in chosen)]))
    lines = []
    for path in sorted({*tree, *present}):
        if path not in tree:
            lines.append(f"{shown}/{path}: not rendered any more")
        elif path not in present:
            lines.append(f"{shown}/{path}: missing")
        elif not is_there(root / path, tree[path]):
            lines.append(f"{shown}/{path}: differs from the matrix")
    gone = orphan_folders(root, chosen) if orphans else []
    return lines + [f"{shown}/{name}: no row of the matrix makes it" for name in gone]


def renewal() -> str:
    """The command that brings `packer/` up to date.

    From the matrix of the checkout more is generated than packer/, such as docs/proven.md: the
    command is the one that writes all of it.
    """
    own = matrix_file() == ROOT / "amis.yaml" and packer_dir() == ROOT / "packer"
    return "./invoke generate" if own and not overlay.overlays() else "./invoke render"
