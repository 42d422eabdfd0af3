"""The files that Packer uploads to the build instance: one list for HCL, digest and run folders."""

from __future__ import annotations

import os
from pathlib import Path

from kiln.base import overlay
from kiln.base.paths import ROOT
from kiln.base.recipe import Recipe

# Each is uploaded to /var/tmp/kiln under its base name, beside the recipe's `files`.
FOLDERS = ("provisioners/lib", "runtime")
# Folders that an overlay can add to; its files replace ours.
_OF_OVERLAYS = ("runtime",)


def script_path(component: str, *, apart: bool) -> str:
    """A component's provisioner, relative to the checkout.

    `apart`: an overlay's is in the overlay; otherwise it is among ours, as in a run's folder.
    """
    return (
        _from_root(overlay.provisioner_file(component)) if apart else f"provisioners/{component}.sh"
    )


def upload_folders(*, apart: bool) -> list[str]:
    """The folders that Packer uploads, relative to the checkout; see `script_path` for `apart`."""
    own = [path for name in _OF_OVERLAYS for path in overlay.own_files(name)] if apart else []
    return [*FOLDERS, *map(_from_root, own)]


def uploaded_files(recipe: Recipe) -> dict[str, Path]:
    """Path as in a checkout → file: the recipe's provisioners and all in `FOLDERS`."""
    chosen = {
        script_path(name, apart=False): overlay.provisioner_file(name) for name in recipe.components
    }
    tops = [(ROOT, folder) for folder in FOLDERS]
    tops += [(top, folder) for top in overlay.overlays() for folder in _OF_OVERLAYS]
    for top, folder in tops:
        for path in sorted((top / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                chosen[path.relative_to(top).as_posix()] = path
    return chosen


def _from_root(path: Path) -> str:
    return Path(os.path.relpath(path, ROOT)).as_posix()
