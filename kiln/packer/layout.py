"""Where in `packer/` each file lies: one folder per AMI that Packer alone can build, and `shared`.

An AMI's folder holds what is this AMI's, and links to the rest. All of it is committed, so that a
change to the matrix is reviewed as a change of HCL.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from kiln.base import templates
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe
from kiln.packer import render, settings
from kiln.packer.render import OLD, RECIPE
from kiln.packer.tree import Link

SHARED = "shared"
SETTINGS = "settings.auto.pkrvars.hcl"

LINKS = {
    "variables.pkr.hcl": Link(f"../{SHARED}/variables.pkr.hcl"),
    "source.pkr.hcl": Link(f"../{SHARED}/source.pkr.hcl"),
    "build.pkr.hcl": Link(f"../{SHARED}/build.pkr.hcl"),
    "plugins.pkr.hcl": Link(f"../{SHARED}/plugins.pkr.hcl"),
    f"{OLD}/{RECIPE}": Link(f"../{RECIPE}"),
    f"{OLD}/variables.pkr.hcl": Link(f"../../{SHARED}/variables.pkr.hcl"),
    f"{OLD}/source.pkr.hcl": Link(f"../../{SHARED}/{OLD}/source.pkr.hcl"),
    f"{OLD}/build.pkr.hcl": Link(f"../../{SHARED}/build.pkr.hcl"),
}
"""What an AMI's folder takes from `packer/shared`: the same for every AMI."""

MINE = (RECIPE, *LINKS, "files", SETTINGS, f"{OLD}/{SETTINGS}")
"""What render writes into an AMI's folder; anything else there is left alone."""


def tree_of(
    recipes: Iterable[Recipe], checkout: str, *, apart: bool = True
) -> dict[str, str | Link]:
    """Path in `packer/` → what is to be there."""
    tree: dict[str, str | Link] = {
        f"{SHARED}/{path}": text for path, text in render.shared(checkout, apart=apart).items()
    }
    for recipe in recipes:
        tree |= {f"{recipe.line}/{path}": link for path, link in LINKS.items()}
        variables = _settings(recipe) if apart else ""  # a run gives Packer its own
        if variables:
            tree[f"{recipe.line}/{SETTINGS}"] = variables
            tree[f"{recipe.line}/{OLD}/{SETTINGS}"] = Link(f"../{SETTINGS}")
        tree |= {
            f"{recipe.line}/{path}": text for path, text in render.render_files(recipe).items()
        }
    return tree


def rendered_paths(root: Path, folders: Iterable[str]) -> list[str]:
    """The files and links in these folders of `root` that render wrote, relative to `root`."""
    present = []
    for name in folders:
        mine = [root / name] if name == SHARED else [root / name / path for path in MINE]
        for path in mine:
            paths = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
            present += [p for p in paths if p.is_file() or p.is_symlink()]
    return [path.relative_to(root).as_posix() for path in present]


def orphan_folders(root: Path, recipes: Iterable[Recipe]) -> list[str]:
    """The folders that render wrote for a recipe which is gone."""
    lines = {SHARED, *(recipe.line for recipe in recipes)}
    folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    names = [path.name for path in folders if path.name not in lines]
    return [name for name in names if rendered_paths(root, [name])]


def _settings(recipe: Recipe) -> str:
    """The row's `aws` settings as a file of variables that Packer reads by itself; empty without.

    They belong to no image, so they are not in the digest.
    """
    account = recipe.row.account
    by_pipeline = ["subnet_filter"] if account.subnet_filter else []
    values = settings.by_hand(account)
    if not values and not by_pipeline:
        return ""
    return templates.render(
        "packer/settings.pkrvars.hcl.j2", values=values, by_pipeline=by_pipeline
    )


def checkout_from(root: Path) -> str:
    """The way from `packer/`, which `KILN_PACKER_DIR` may have moved, to the checkout."""
    return Path(os.path.relpath(ROOT, root.resolve())).as_posix()
